"""The user that a Prometheus of a test asks for."""

from __future__ import annotations

from typing import Any, Final

NAME: Final = "flyball"
PASSWORD: Final = "hunter2-of-flyball"
#: Prometheus' own configuration of users: the password by bcrypt, at its least cost.
WEB: Final[dict[str, Any]] = {
    "basic_auth_users": {NAME: "$2b$04$L/20WGOWS/HPpIN2EA/s6uCak6SyVVB.rzV0l/YJGyGaqjEi1ws8K"}
}
