package cli

import (
	"strings"
	"testing"
)

// TestFormats: the formats that are offered are those of the usage, and the name of a file is not one of them.
func TestFormats(t *testing.T) {
	for usage, want := range map[string]string{
		"output format: wide, name, json, yaml, jsonpath=TEMPLATE": "wide name json yaml jsonpath=",
		"output format: json or yaml, with code, error and time":   "json yaml",
		"file to write to": "",
	} {
		if got := strings.Join(formats(usage), " "); got != want {
			t.Errorf("%s: %s", usage, got)
		}
	}
}
