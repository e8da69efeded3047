// Prints what cel-go gives for each expression of standard input: `expression<TAB>JSON`, or `error` for JSON.
// `make cel-table` runs it and writes table.tsv.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/ext"
)

func main() {
	env, err := cel.NewEnv(
		cel.OptionalTypes(),
		cel.CrossTypeNumericComparisons(true),
		ext.Bindings(),
		ext.Strings(),
		ext.Lists(),
		ext.Math(),
		ext.TwoVarComprehensions(),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		text := lines.Text()
		if text == "" || strings.HasPrefix(text, "#") {
			fmt.Println(text)
			continue
		}
		fmt.Printf("%s\t%s\n", text, outcome(env, text))
	}
}

// The expressions are not checked, as those of a saga are not by CEL's checker: types are found while they run.
func outcome(env *cel.Env, text string) string {
	tree, issues := env.Parse(text)
	if issues.Err() != nil {
		return "error"
	}
	program, err := env.Program(tree)
	if err != nil {
		return "error"
	}
	value, _, err := program.Eval(cel.NoVars())
	if err != nil {
		return "error"
	}
	plain, ok := plainOf(value)
	if !ok {
		return "error"
	}
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(plain) != nil {
		return "error"
	}
	return strings.TrimSpace(out.String())
}

// Values as JSON has them, with doubles that are seen to be doubles. What JSON cannot hold is no value.
func plainOf(value ref.Val) (any, bool) {
	switch native := value.Value().(type) {
	case float64:
		text, err := json.Marshal(native)
		if err != nil {
			return nil, false
		}
		if !strings.ContainsAny(string(text), ".e") {
			text = append(text, ".0"...)
		}
		return json.RawMessage(text), true
	case time.Duration:
		return fmt.Sprintf("%vs", native.Seconds()), true
	case time.Time:
		return native.UTC().Format(time.RFC3339Nano), true
	}
	switch typed := value.(type) {
	case *types.Optional:
		return nil, false
	case traits.Lister:
		items := []any{}
		for each := typed.Iterator(); each.HasNext().Value() == true; {
			item, ok := plainOf(each.Next())
			if !ok {
				return nil, false
			}
			items = append(items, item)
		}
		return items, true
	case traits.Mapper:
		members := map[string]any{}
		for each := typed.Iterator(); each.HasNext().Value() == true; {
			key := each.Next()
			name, isText := key.Value().(string)
			member, ok := plainOf(typed.Get(key))
			if !isText || !ok {
				return nil, false
			}
			members[name] = member
		}
		return members, true
	}
	switch native := value.Value().(type) {
	case bool, int64, string:
		return native, true
	case nil:
		return nil, true
	}
	return nil, value.Type().TypeName() == "null_type"
}
