package starter

import (
	"cmp"
	"embed"
	"fmt"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"k8s.io/apimachinery/pkg/util/validation"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/workshop/skeleton"
)

//go:embed files
var files embed.FS

const (
	golang = "go"
	python = "python"
	// descriptor is the file of a driver in Python that has the messages and services of CSI.
	descriptor = "csi.binpb"
	// example is the name of the driver in the templates.
	example = "skeleton.example.com"
)

// Languages returns the languages in which Write writes a driver; the first one is the default.
func Languages() []string { return []string{golang, python} }

// Write writes a driver that works, its test, its file for a host and a page that explains them into a directory, which
// is created; if dir is empty, into a directory with the driver's name. A directory that is not empty is an error. It
// returns the paths of the files, the test last.
func Write(name, dir, language string) ([]string, error) {
	if err := check(name); err != nil {
		return nil, err
	}
	parts := [][2]string{{"README.md", "README.md"}, {name + ".yaml", "driver.yaml"}, {"test.sh", "test.sh"}}
	switch language {
	case golang:
		parts = append([][2]string{
			{"main.go", "driver.go.txt"},
			{"main_test.go", "driver_test.go.txt"},
			{"go.mod", "go.mod.txt"},
			{"go.sum", "go.sum.txt"},
		}, parts...)
	case python:
		parts = append([][2]string{
			{"driver.py", "driver.py"}, {"test_driver.py", "test_driver.py"}, {descriptor, descriptor},
		}, parts...)
	default:
		return nil, fmt.Errorf("write driver: unknown language %q: use %s", language, strings.Join(Languages(), " or "))
	}
	dir = cmp.Or(dir, name)
	var all []skeleton.File
	for _, part := range parts {
		text, err := text(part[1], name, language)
		if err != nil {
			return nil, fmt.Errorf("write driver: %w", err)
		}
		all = append(all, skeleton.File{Name: part[0], Text: text})
	}
	return skeleton.Write(dir, all)
}

// check refuses names that CSI does not allow, or that the objects of a driver in Kubernetes cannot have.
func check(name string) error {
	if err := csi.CheckName(name); err != nil {
		return err
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("%w: %q: use lower case letters, digits, dots and dashes, as files.example.com", csi.ErrName, name)
	}
	return nil
}

func text(template, name, language string) (string, error) {
	if template == descriptor {
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(protodesc.ToFileDescriptorProto(csipb.File_csi_proto))
		return string(data), err
	}
	data, err := files.ReadFile("files/" + template)
	return strings.ReplaceAll(skeleton.Choose(string(data), language), example, name), err
}
