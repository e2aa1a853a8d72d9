package volplane_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// featureRows returns the cells of the table below a heading of docs/features.md, without its head.
func featureRows(t *testing.T, heading string) [][]string {
	t.Helper()
	_, below, found := strings.Cut(readText(t, "docs/features.md"), "\n## "+heading+"\n")
	below, _, _ = strings.Cut(below, "\n## ")
	var rows [][]string
	for line := range strings.Lines(below) {
		if strings.HasPrefix(line, "| ") {
			rows = append(rows, strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|"))
		}
	}
	if !found || len(rows) < 2 {
		t.Fatalf("docs/features.md has no table below %q", heading)
	}
	return rows[1:]
}

// quoted returns what is between backticks.
func quoted(text string) []string {
	var out []string
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}

// compare reports what only one of two lists has, and what one of them has twice.
func compare(t *testing.T, what string, listed, there []string) {
	t.Helper()
	for i, name := range listed {
		if slices.Contains(listed[:i], name) {
			t.Errorf("docs/features.md has %s %s twice", what, name)
		}
		if !slices.Contains(there, name) {
			t.Errorf("docs/features.md has %s %s, which CSI does not have", what, name)
		}
	}
	for _, name := range there {
		if !slices.Contains(listed, name) {
			t.Errorf("docs/features.md lacks %s %s", what, name)
		}
	}
}

// TestEachCallIsListed wants each call of CSI in docs/features.md, with the packages that make it.
func TestEachCallIsListed(t *testing.T) {
	var listed, there []string
	for _, row := range featureRows(t, "Calls of CSI") {
		name, packages := quoted(row[0])[0], quoted(row[1])
		listed = append(listed, name)
		if len(packages) == 0 {
			t.Errorf("docs/features.md does not say which package calls %s", name)
		}
		for _, dir := range packages {
			if !calls(t, dir, name) {
				t.Errorf("docs/features.md says that %s calls %s, and it does not", dir, name)
			}
		}
	}
	services := csipb.File_csi_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			there = append(there, string(methods.Get(j).Name()))
		}
	}
	compare(t, "the call", listed, there)
}

// calls says whether the source of a package has a call in it.
func calls(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	call := regexp.MustCompile(`\.` + name + `\b`)
	return slices.ContainsFunc(files, func(path string) bool {
		text, err := os.ReadFile(path)
		return err == nil && !strings.HasSuffix(path, "_test.go") && call.Match(text)
	})
}

// TestEachCapabilityIsListed wants each capability of CSI in docs/features.md, and the one that CSI no longer has.
func TestEachCapabilityIsListed(t *testing.T) {
	var listed []string
	for _, row := range featureRows(t, "Capabilities of CSI") {
		listed = append(listed, quoted(row[0])[0]+" of the "+strings.TrimSpace(row[1]))
	}
	there := []string{"VOLUME_CONDITION of the controller and node, up to CSI 1.12"}
	for of, enums := range map[string][]protoreflect.Enum{
		"plugin":           {csipb.PluginCapability_Service_Type(0), csipb.PluginCapability_VolumeExpansion_Type(0)},
		"controller":       {csipb.ControllerServiceCapability_RPC_Type(0)},
		"group controller": {csipb.GroupControllerServiceCapability_RPC_Type(0)},
		"node":             {csipb.NodeServiceCapability_RPC_Type(0)},
	} {
		for _, enum := range enums {
			values := enum.Descriptor().Values()
			for i := 1; i < values.Len(); i++ { // the first one is UNKNOWN
				there = append(there, string(values.Get(i).Name())+" of the "+of)
			}
		}
	}
	compare(t, "the capability", listed, there)
}

// TestEachFieldIsListed wants each field of CSI's messages in docs/features.md.
func TestEachFieldIsListed(t *testing.T) {
	var listed, there []string
	for _, row := range featureRows(t, "Fields of CSI") {
		message := quoted(row[0])[0]
		for _, field := range quoted(strings.Join(row[1:], " ")) {
			listed = append(listed, message+" "+field)
		}
		if last := row[len(row)-1]; len(quoted(last)) > 0 && !strings.Contains(last, ": ") {
			t.Errorf("docs/features.md does not say why fields of %s are not used", message)
		}
	}
	var visit func(protoreflect.MessageDescriptors)
	visit = func(all protoreflect.MessageDescriptors) {
		for i := range all.Len() {
			m := all.Get(i)
			if m.IsMapEntry() {
				continue
			}
			name := strings.TrimPrefix(string(m.FullName()), "csi.v1.")
			for j := range m.Fields().Len() {
				there = append(there, name+" "+string(m.Fields().Get(j).Name()))
			}
			visit(m.Messages())
		}
	}
	visit(csipb.File_csi_proto.Messages())
	compare(t, "the field", listed, there)
}
