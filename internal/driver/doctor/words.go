package doctor

import (
	"errors"
	"fmt"
	"strings"

	"volplane.dev/volplane/internal/driverfile"
)

// Words splits a command into words as a shell does with simple words: at blanks, except in quotes and after a
// backslash. Nothing is expanded, and no shell is run.
func Words(text string) ([]string, error) {
	var w splitter
	for _, r := range text {
		w.take(r)
	}
	if w.quote != 0 || w.escaped {
		return nil, errors.New("a quote is not closed")
	}
	w.end()
	return w.words, nil
}

// splitter is what is known in the middle of a command.
type splitter struct {
	words []string
	word  strings.Builder
	// quote is the quote that is open, or 0. inWord says that there is a word, which may be empty.
	quote           rune
	inWord, escaped bool
}

func (w *splitter) take(r rune) {
	switch {
	case w.escaped:
		w.add(r)
		w.escaped = false
	case r == '\\' && w.quote != '\'':
		w.escaped = true
	case w.quote != 0 && r == w.quote:
		w.quote = 0
	case w.quote != 0:
		w.add(r)
	case r == '\'' || r == '"':
		w.quote, w.inWord = r, true
	case strings.ContainsRune(" \t\n", r):
		w.end()
	default:
		w.add(r)
	}
}

func (w *splitter) add(r rune) {
	w.word.WriteRune(r)
	w.inWord = true
}

func (w *splitter) end() {
	if w.inWord {
		w.words = append(w.words, w.word.String())
	}
	w.word.Reset()
	w.inWord = false
}

// commandOf returns the words of a command with its references replaced.
func commandOf(text string, references map[string]string) ([]string, error) {
	words, err := Words(text)
	if err != nil {
		return nil, fmt.Errorf("command %.80q: %w", text, err)
	}
	for i := range words {
		words[i] = driverfile.Expand(words[i], references)
	}
	return words, nil
}
