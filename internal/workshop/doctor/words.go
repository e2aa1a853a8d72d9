package doctor

import (
	"fmt"

	"volplane.dev/volplane/internal/hosting/driverfile"
)

// commandOf returns the words of a command with its references replaced; none of a text that is empty, because the
// driver runs already.
func commandOf(text string, references map[string]string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	words, err := driverfile.Words(text)
	if err != nil {
		return nil, fmt.Errorf("command %.80q: %w", text, err)
	}
	for i := range words {
		words[i] = driverfile.Expand(words[i], references)
	}
	return words, nil
}
