package golden

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Read sets the fields of the struct to which facts points: NAME sets a bool, NAME=VALUE any other field, as does
// NAME=false. NAME is that of the field in lower case, with hyphens where people see another word.
func Read(t testing.TB, facts any, words []string) {
	t.Helper()
	to := reflect.ValueOf(facts).Elem()
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		field := to.FieldByNameFunc(func(f string) bool { return strings.EqualFold(f, strings.ReplaceAll(name, "-", "")) })
		if !field.IsValid() {
			t.Fatalf("unknown fact %q", word)
		}
		if err := set(field, value); err != nil {
			t.Fatalf("%s: %v", word, err)
		}
	}
}

func set(field reflect.Value, text string) error {
	if at, is := field.Addr().Interface().(*time.Duration); is {
		var err error
		*at, err = time.ParseDuration(text)
		return err
	}
	switch field.Kind() {
	case reflect.Bool:
		field.SetBool(text != "false")
	case reflect.String:
		field.SetString(text)
	case reflect.Int, reflect.Int64:
		n, err := size(text)
		field.SetInt(n)
		return err
	default:
		return fmt.Errorf("no word can be a %s", field.Type())
	}
	return nil
}

// size reads a number that may have a binary unit.
func size(text string) (int64, error) {
	shift := 0
	for unit, bits := range map[string]int{"Ki": 10, "Mi": 20, "Gi": 30} {
		if number, is := strings.CutSuffix(text, unit); is {
			text, shift = number, bits
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n << shift, err
}
