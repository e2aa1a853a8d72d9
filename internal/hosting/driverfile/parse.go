package driverfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxFile is the size limit of a file, in bytes.
const maxFile = 64 << 10

// Parse returns the driver of a file's content, in YAML or JSON. It refuses fields that do not
// exist, and whatever Check refuses.
func Parse(data []byte) (Driver, error) {
	if len(data) > maxFile {
		return Driver{}, fmt.Errorf("the file is longer than %d bytes", maxFile)
	}
	if n := documents(data); n > 1 {
		return Driver{}, fmt.Errorf("the file has %d YAML documents: write each driver to a file of its own", n)
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return Driver{}, err
	}
	if err := checkHeader(text); err != nil {
		return Driver{}, err
	}
	var d Driver
	strict, err := kjson.UnmarshalStrict(text, &d)
	if err != nil {
		return Driver{}, typeMistake(err)
	}
	if len(strict) > 0 {
		return Driver{}, errors.Join(strict...)
	}
	d.tidy()
	return d, Check(d)
}

// checkHeader checks the version before the other fields, because another version may have others.
func checkHeader(text []byte) error {
	var h struct{ APIVersion, Kind any }
	// Names are compared without case here; the strict reader afterwards does not.
	if err := yaml.Unmarshal(text, &h); err != nil {
		return errors.New("the file is not an object: begin it with \"apiVersion: " + APIVersion + "\"")
	}
	if h.APIVersion != APIVersion || h.Kind != Kind {
		return fmt.Errorf("apiVersion %s and kind %s: this program reads %s and %s only", shown(h.APIVersion),
			shown(h.Kind), APIVersion, Kind)
	}
	return nil
}

// shown returns a value of any type for an error.
func shown(v any) string {
	if v == nil {
		return "<none>"
	}
	return fmt.Sprintf("%.40q", fmt.Sprint(v))
}

// typeMistake returns an error about a value of a wrong type in the words of YAML.
func typeMistake(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err
	}
	want := wrong.Type.Kind().String()
	switch want {
	case "string":
		want = "a string: put the value in quotes"
	case "slice":
		want = "a list"
	case "map", "struct":
		want = "a map"
	}
	return fmt.Errorf("%s is of type %s; it must be %s", wrong.Field, strings.Fields(wrong.Value + " ")[0], want)
}

// documents returns the number of YAML documents with content: the reader reads only the first,
// and the others would be ignored silently.
func documents(data []byte) int {
	n, inside := 0, false
	for line := range bytes.Lines(data) {
		rest := line
		if marker := line[:min(3, len(line))]; string(marker) == "---" || string(marker) == "..." {
			if after := line[3:]; len(after) == 0 || bytes.ContainsAny(after[:1], " \t\r\n") {
				inside, rest = false, after
			}
		}
		if rest = bytes.TrimSpace(rest); len(rest) > 0 && rest[0] != '#' && rest[0] != '%' && !inside {
			inside = true
			n++
		}
	}
	return n
}

// tidy makes empty lists nil, as they are when the driver is read again.
func (d *Driver) tidy() {
	for i := range d.Processes {
		p := &d.Processes[i]
		if len(p.Exec) == 0 {
			p.Exec = nil
		}
		if len(p.Env) == 0 {
			p.Env = nil
		}
		if len(p.EnvFromSecret) == 0 {
			p.EnvFromSecret = nil
		}
	}
}

// format returns the content of a driver's file.
func format(d Driver) ([]byte, error) {
	data, err := yaml.Marshal(d)
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("it is longer than %d bytes", maxFile)
	}
	return data, err
}
