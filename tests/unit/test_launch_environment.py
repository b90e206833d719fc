"""The environment an engine gets: any user id, a read-only root, plugins named, nothing of the user's lost."""

from __future__ import annotations

from flyball_engine.launch.environment import Changes, Place, changes


def environment(
    variables: dict[str, str],
    *,
    governed: bool = True,
    user: str | None = "root",
    writable: tuple[str, ...] = (),
    plugins: tuple[str, ...] = (),
) -> Changes:
    """What is changed for a process with these variables and these writable folders."""
    place = Place(
        variables=variables, scratch="/tmp", user=user, writable=lambda path: path in writable, plugins=plugins
    )
    return changes(place, governed=governed)


def test_a_writable_home_is_kept_with_all_that_lies_below_it() -> None:
    made = environment({"HOME": "/root"}, writable=("/root",))
    assert set(made.set) == {"VLLM_PLUGINS"}
    assert not made.notices


def test_a_home_that_cannot_be_written_to_moves_and_the_log_says_so() -> None:
    made = environment({"HOME": "/root"})
    assert made.set["HOME"] == "/tmp/flyball-home"
    assert made.set["HF_HOME"] == "/tmp/flyball-home/.cache/huggingface"
    assert made.set["XDG_CACHE_HOME"] == "/tmp/flyball-home/.cache"
    assert "HOME=/root is not writable" in made.notices[0]


def test_the_home_that_a_runtime_gives_a_nameless_user_is_none_to_speak_of() -> None:
    made = environment({"HOME": "/"}, user=None)
    assert made.set["HOME"] == "/tmp/flyball-home"
    assert made.set["USER"] == made.set["LOGNAME"] == "flyball"
    assert not made.notices


def test_what_the_user_has_set_is_kept() -> None:
    made = environment({"HOME": "/", "HF_HOME": "/models", "USER": "me"}, user=None)
    assert "HF_HOME" not in made.set
    assert "USER" not in made.set


def test_our_plugins_are_named_beside_those_vllm_would_have_loaded() -> None:
    made = environment({}, plugins=("lora_resolver", "flyball"))
    assert made.set["VLLM_PLUGINS"] == "lora_resolver,flyball,flyball_control"


def test_the_users_choice_of_plugins_is_kept() -> None:
    made = environment({"VLLM_PLUGINS": "mine,flyball"}, plugins=("lora_resolver",))
    assert made.set["VLLM_PLUGINS"] == "mine,flyball,flyball_control"


def test_no_plugins_at_all_is_a_choice_too() -> None:
    assert (
        environment({"VLLM_PLUGINS": ""}, plugins=("lora_resolver",)).set["VLLM_PLUGINS"] == "flyball,flyball_control"
    )


def test_plain_vllm_does_not_load_our_plugins_even_if_they_are_found() -> None:
    made = environment({"VLLM_PLUGINS": "mine,flyball_control"}, governed=False)
    assert made.set["VLLM_PLUGINS"] == "mine"


def test_the_rust_front_end_is_dropped_with_a_word() -> None:
    variables = {"VLLM_USE_RUST_FRONTEND": "1", "VLLM_RUST_FRONTEND_PATH": "auto", "PATH": "/bin"}
    made = environment(variables)
    assert made.applied(variables).keys() & variables.keys() == {"PATH"}
    assert "VLLM_USE_RUST_FRONTEND is dropped" in made.notices[-1]


def test_a_rust_front_end_switched_off_is_left_alone() -> None:
    assert not environment({"VLLM_USE_RUST_FRONTEND": "0"}).drop
