// Command health says what tools that wait for a rollout make of objects: Helm 4 and Flux by their library, kstatus, and
// Argo CD by a health rule in Lua, run as Argo CD runs it. Tests read it.
//
// Standard input is {"rule": LUA, "objects": [...]}, standard output a list of {"kstatus": ..., "argocd": ...}.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type question struct {
	Rule    string            `json:"rule"`
	Objects []json.RawMessage `json:"objects"`
}

type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

type answer struct {
	Kstatus verdict `json:"kstatus"`
	Argocd  verdict `json:"argocd"`
}

// What Argo CD accepts of a rule.
var argocdStatuses = []string{"Healthy", "Progressing", "Degraded", "Suspended", "Missing", "Unknown"}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "health:", err)
		os.Exit(1)
	}
}

func run() error {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return err
	}
	answers := []answer{}
	for _, raw := range asked.Objects {
		var object unstructured.Unstructured
		// Not encoding/json, which makes all numbers floats: kstatus would not see a generation.
		if err := object.UnmarshalJSON(raw); err != nil {
			return err
		}
		result, err := status.Compute(&object)
		if err != nil {
			return err
		}
		argocd, err := apply(asked.Rule, object.Object)
		if err != nil {
			return err
		}
		answers = append(answers, answer{verdict{string(result.Status), result.Message}, argocd})
	}
	return json.NewEncoder(os.Stdout).Encode(answers)
}

// apply runs the rule with no more libraries than Argo CD gives it, and no longer than Argo CD lets it.
func apply(rule string, object map[string]any) (verdict, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		state.Push(state.NewFunction(open))
		state.Push(lua.LString(name))
		state.Call(1, 0)
	}
	limited, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state.SetContext(limited)
	state.SetGlobal("obj", toLua(state, object))
	if err := state.DoString(rule); err != nil {
		return verdict{}, err
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return verdict{}, fmt.Errorf("the rule gave a %s, not a table", state.Get(-1).Type())
	}
	found := verdict{text(table, "status"), text(table, "message")}
	if !slices.Contains(argocdStatuses, found.Status) {
		return verdict{}, fmt.Errorf("the rule gave the status %q, which Argo CD does not know", found.Status)
	}
	return found, nil
}

func text(table *lua.LTable, key string) string { return lua.LVAsString(table.RawGetString(key)) }

func toLua(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case bool:
		return lua.LBool(value)
	case string:
		return lua.LString(value)
	case int64:
		return lua.LNumber(value)
	case float64:
		return lua.LNumber(value)
	case []any:
		table := state.NewTable()
		for _, item := range value {
			table.Append(toLua(state, item))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for key, item := range value {
			table.RawSetString(key, toLua(state, item))
		}
		return table
	default:
		return lua.LNil
	}
}
