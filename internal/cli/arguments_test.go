package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestFormats: the formats that are offered are those of the usage, and the name of a file is not one of them.
func TestFormats(t *testing.T) {
	for usage, want := range map[string]string{
		"output format: wide, name, json, yaml, jsonpath=TEMPLATE": "wide name json yaml jsonpath=",
		"output format: json or yaml, with code, error and time":   "json yaml",
		"file to write to": "",
	} {
		c := &cobra.Command{}
		c.Flags().String("output", "", usage)
		completeOutputs(c)
		var got []string
		if offer, ok := c.GetFlagCompletionFunc("output"); ok {
			got, _ = offer(c, nil, "")
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %s", usage, got)
		}
	}
}
