package driverfile

import (
	"slices"
	"strings"
	"testing"
)

// TestWords: words are split as by a shell, and what only a shell can do is refused.
func TestWords(t *testing.T) {
	for line, want := range map[string][]string{
		`plugin`:                        {"plugin"},
		" a\tb  c ":                     {"a", "b", "c"},
		`a 'b c' "d e"`:                 {"a", "b c", "d e"},
		`a b' 'c" "d`:                   {"a", "b c d"},
		`a '' ""`:                       {"a", "", ""},
		`a b\ c \\ \" \'`:               {"a", "b c", `\`, `"`, `'`},
		`a "b\"c\\d\n" 'e\"f'`:          {"a", `b"c\d\n`, `e\"f`},
		`a --x=$(CSI_ENDPOINT) $$(B)`:   {"a", "--x=$(CSI_ENDPOINT)", "$$(B)"},
		`a "$(X)" '$(Y)' '$Z' \$HOME $`: {"a", "$(X)", "$(Y)", "$Z", "$HOME", "$"},
		`a '|' "&" \; '>' "<" "(" "$."`: {"a", "|", "&", ";", ">", "<", "(", "$."},
		`/x/y=z --a=* ~ [b]? {c} #d !`:  {"/x/y=z", "--a=*", "~", "[b]?", "{c}", "#d", "!"},
		`é "ü ö"`:                       {"é", "ü ö"},
		// Lines, as they are copied from a shell or from YAML.
		"a \\\n  b \\\n  --c":             {"a", "b", "--c"},
		"a \\\r\n  b\r\n":                 {"a", "b"},
		"a b\\\nc":                        {"a", "bc"},
		"\n  a\n  --b=1\n\n  -c d\n":      {"a", "--b=1", "-c", "d"},
		"a --e\n$(CSI_ENDPOINT)\n'x y'":   {"a", "--e", "$(CSI_ENDPOINT)", "x y"},
		"a \n \\\n  --b":                  {"a", "--b"},
		"a 'b\nc' \"d\ne\\\nf\" 'g\\\nh'": {"a", "b\nc", "d\nef", "g\\\nh"},
		"sh -c '\nmodprobe x\nexec y\n'":  {"sh", "-c", "\nmodprobe x\nexec y\n"},
		"a --b\n\"\"\n":                   {"a", "--b", ""},
	} {
		if got, err := Words(line); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", line, got, err, want)
		}
	}
	for line, want := range map[string]string{
		"":             "it is empty",
		" ":            "it is empty",
		"a | b":        "| means nothing to the program",
		"a&":           "& means nothing",
		"a; b":         "; means nothing",
		"a > log":      "> means nothing",
		"a < in":       "< means nothing",
		"a `b`":        "` means nothing",
		"a \"`b`\"":    "` means nothing",
		"(a)":          "( means nothing",
		"a $(cat x)":   "$( means nothing",
		"a $(X":        "$( is not closed",
		"a $HOME":      "$H is not replaced: write $(NAME)",
		"a \"$HOME\"":  "$H is not replaced",
		"a ${HOME}":    "${ is not replaced",
		"a 'b":         "a single quote is not closed",
		`a "b`:         "a double quote is not closed",
		`a "b\`:        "a double quote is not closed",
		`a \`:          "it ends with a backslash",
		"a\nb":         `a line begins with "b", which a shell takes for another command: end the line before it with a backslash`,
		"a --b\n/c":    `a line begins with "/c"`,
		"a \\\nb\n# c": `a line begins with "#"`,
		"a\n- --b":     "as an item of a list in YAML: remove these dashes",
		"a\nX=1 b":     `a line begins with "X=1"`,
		"DEBUG=1 a":    `"DEBUG=1" is not a program: set a variable with --env`,
	} {
		if got, err := Words(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %s", line, got, err, want)
		}
	}
}
