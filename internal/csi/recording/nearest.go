package recording

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"volplane.dev/volplane/internal/process/redact"
)

// maxShown is how many differences are shown, and how long each value may be.
const (
	maxShown = 5
	maxValue = 80
)

// nearest returns the difference between a request and the most similar recorded one.
func nearest(request json.RawMessage, recorded []json.RawMessage) string {
	asked := leaves(request)
	var least []string
	for i, other := range recorded {
		if d := differences(leaves(other), asked); i == 0 || len(d) < len(least) {
			least = d
		}
	}
	if n := len(least) - maxShown; n > 0 {
		least = append(least[:maxShown:maxShown], fmt.Sprintf("and %d more", n))
	}
	return strings.Join(least, "; ")
}

// differences returns a sentence about each field that is not the same.
func differences(recorded, asked map[string]string) []string {
	var out []string
	all := maps.Clone(recorded)
	maps.Copy(all, asked)
	for _, field := range slices.Sorted(maps.Keys(all)) {
		was, had := recorded[field]
		is, has := asked[field]
		switch {
		case !has:
			out = append(out, fmt.Sprintf("%s: recorded %s, not asked", field, redact.Line(was, maxValue)))
		case !had:
			out = append(out, fmt.Sprintf("%s: not recorded, asked %s", field, redact.Line(is, maxValue)))
		case was != is:
			out = append(out, fmt.Sprintf("%s: recorded %s, asked %s", field, redact.Line(was, maxValue),
				redact.Line(is, maxValue)))
		}
	}
	return out
}

// leaves returns the values of a JSON text by their paths.
func leaves(text json.RawMessage) map[string]string {
	out := map[string]string{}
	var value any
	if json.Unmarshal(text, &value) == nil {
		addLeaves(out, "", value)
	}
	return out
}

func addLeaves(to map[string]string, path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, field := range v {
			addLeaves(to, strings.TrimPrefix(path+"."+name, "."), field)
		}
		if len(v) == 0 && path != "" {
			to[path] = "{}"
		}
	case []any:
		for i, element := range v {
			addLeaves(to, fmt.Sprintf("%s[%d]", path, i), element)
		}
	default:
		data, _ := json.Marshal(v) // it was read as JSON
		to[path] = string(data)
	}
}
