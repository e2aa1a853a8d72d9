package driverfile

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// Words splits a command line into words as a shell does: at blanks, with quotes and
// backslashes. Nothing is expanded and no shell is run; what a shell would do more is refused, because
// it would be passed to the program as it is. $(NAME) stays, for the process's variables.
//
// A command may be copied with its line breaks. One after a backslash continues the line; any other is a blank if the
// next line begins as arguments do. Where it begins with a plain word, a shell would run that as another command.
func Words(line string) ([]string, error) {
	w := splitter{rest: []rune(strings.ReplaceAll(line, "\r\n", "\n"))}
	for len(w.rest) > 0 {
		if err := w.next(); err != nil {
			return nil, err
		}
	}
	w.end()
	if len(w.words) == 0 {
		return nil, errors.New("it is empty: write a program and its arguments")
	}
	if name, _, assigned := strings.Cut(w.words[0], "="); assigned && !strings.Contains(name, "/") {
		return nil, fmt.Errorf("%q is not a program: set a variable with --env", w.words[0])
	}
	return w.words, nil
}

// splitter is the state of Words.
type splitter struct {
	rest  []rune
	word  strings.Builder
	words []string
	// begun says that the word has begun; it may be empty, as in ''.
	begun bool
}

// end ends a word.
func (w *splitter) end() {
	if w.begun {
		w.words = append(w.words, w.word.String())
	}
	w.word.Reset()
	w.begun = false
}

// take removes and returns the next rune.
func (w *splitter) take() rune {
	r := w.rest[0]
	w.rest = w.rest[1:]
	return r
}

func (w *splitter) write(r rune) {
	w.word.WriteRune(r)
	w.begun = true
}

// next reads a blank, or the next part of a word.
func (w *splitter) next() error {
	switch r := w.take(); {
	case r == '\n':
		w.end()
		return w.newLine()
	case unicode.IsSpace(r):
		w.end()
	case r == '\\' && len(w.rest) > 0 && w.rest[0] == '\n':
		w.take()
	case r == '\'':
		return w.single()
	case r == '"':
		return w.double()
	case r == '\\':
		if len(w.rest) == 0 {
			return errors.New("it ends with a backslash")
		}
		w.write(w.take())
	case r == '$':
		return w.dollar()
	case strings.ContainsRune("|&;<>()`", r):
		return noShell(string(r))
	default:
		w.write(r)
	}
	return nil
}

// newLine checks the beginning of a line that no backslash continues.
func (w *splitter) newLine() error {
	for len(w.rest) > 0 && unicode.IsSpace(w.rest[0]) {
		w.take()
	}
	if len(w.rest) == 0 || len(w.words) == 0 {
		return nil
	}
	first := strings.Fields(string(w.rest))[0]
	switch {
	case first == "-":
		return errors.New("a line begins with a dash, as an item of a list in YAML: remove these dashes")
	case strings.HasPrefix(first, `\`) && len(w.rest) > 1 && w.rest[1] == '\n', strings.ContainsAny(first[:1], `-'"$`):
		return nil
	}
	return fmt.Errorf("a line begins with %.80q, which a shell takes for another command: end the line before it with a "+
		"backslash if it is an argument, or else write a script and name that", first)
}

// single reads the rest of a part in single quotes.
func (w *splitter) single() error {
	for w.begun = true; len(w.rest) > 0; {
		r := w.take()
		if r == '\'' {
			return nil
		}
		w.write(r)
	}
	return errors.New("a single quote is not closed")
}

// double reads the rest of a part in double quotes.
func (w *splitter) double() error {
	for w.begun = true; len(w.rest) > 0; {
		switch r := w.take(); {
		case r == '"':
			return nil
		case r == '`':
			return noShell("`")
		case r == '$':
			if err := w.dollar(); err != nil {
				return err
			}
		case r == '\\' && len(w.rest) > 0 && w.rest[0] == '\n':
			w.take()
		case r == '\\' && len(w.rest) > 0 && strings.ContainsRune("\"\\$`", w.rest[0]):
			w.write(w.take())
		default:
			w.write(r)
		}
	}
	return errors.New("a double quote is not closed")
}

// dollar reads what follows a dollar sign: $(NAME) and $$ are the process's own matter, and $NAME is a
// shell's.
func (w *splitter) dollar() error {
	w.write('$')
	escaped := len(w.rest) > 0 && w.rest[0] == '$'
	if escaped {
		w.write(w.take())
	}
	if len(w.rest) == 0 {
		return nil
	}
	switch r := w.rest[0]; {
	case r == '(':
		return w.variable()
	case !escaped && (r == '_' || r == '{' || unicode.IsLetter(r) || unicode.IsDigit(r)):
		return fmt.Errorf("no shell is run, and $%c is not replaced: write $(NAME) for a variable of the process, "+
			`or \$ for a dollar sign`, r)
	}
	return nil
}

// variable reads (NAME).
func (w *splitter) variable() error {
	for len(w.rest) > 0 {
		r := w.take()
		if unicode.IsSpace(r) {
			return noShell("$(")
		}
		if w.write(r); r == ')' {
			return nil
		}
	}
	return errors.New("$( is not closed")
}

func noShell(sign string) error {
	return fmt.Errorf("no shell is run, and %s means nothing to the program: put it in quotes if it belongs to an "+
		"argument, or else write a script and name that", sign)
}
