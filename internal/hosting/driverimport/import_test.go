package driverimport_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/hosting/driverimport"
	"volplane.dev/volplane/internal/testkit/golden"
)

func read(t *testing.T, name string) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var out []*unstructured.Unstructured
	for d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); ; {
		u := &unstructured.Unstructured{}
		if err := d.Decode(&u.Object); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, u)
	}
}

func text(t *testing.T, r driverimport.Result) string {
	t.Helper()
	var out strings.Builder
	for _, d := range r.Drivers {
		data, err := yaml.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "---\n%s", data)
	}
	fmt.Fprintln(&out, "--- objects")
	for _, o := range r.Objects {
		fmt.Fprintln(&out, o.GetKind()+"/"+o.GetName())
	}
	for _, one := range []struct {
		title string
		notes []driverimport.Note
	}{{"replaced", r.Replaced}, {"left", r.Left}, {"missing", r.Missing}} {
		fmt.Fprintln(&out, "--- "+one.title)
		for _, n := range one.notes {
			fmt.Fprintln(&out, n)
		}
	}
	return out.String()
}

// TestImport: what vendors publish, and what it becomes.
func TestImport(t *testing.T) {
	for name, o := range map[string]driverimport.Options{
		"share":   {Programs: map[string]string{"images.example.com/share/plugin": "/usr/local/bin/share"}},
		"loop":    {ImageRoot: "/opt/loop"},
		"cloud":   {Programs: map[string]string{"driver": "/usr/local/bin/cloud"}},
		"unknown": {Programs: map[string]string{"j": "/bin/a"}},
	} {
		t.Run(name, func(t *testing.T) {
			o.Namespace, o.NodeDir = "default", "/var/lib/volplane/node"
			objects := read(t, name)
			got := text(t, driverimport.Import(objects, o))
			golden.Equal(t, filepath.Join("testdata", name+".txt"), got)
			if strings.Contains(got, "not-to-be-shown") {
				t.Error("the value of a Secret is shown")
			}
			if again := text(t, driverimport.Import(objects, o)); again != got {
				t.Errorf("it is another one the second time:\n%s", again)
			}
		})
	}
}

// TestNothing: manifests without a driver are a mistake.
func TestNothing(t *testing.T) {
	r := driverimport.Import(nil, driverimport.Options{})
	if len(r.Missing) != 1 || !strings.Contains(r.Missing[0].String(), "no workload has a container with a CSI driver") {
		t.Errorf("%v", r.Missing)
	}
}

// TestNamed: --name is for a driver whose name the manifests do not say.
func TestNamed(t *testing.T) {
	objects := read(t, "loop")
	r := driverimport.Import(objects, driverimport.Options{Name: "mine.example.com", ImageRoot: "/", NodeDir: "/n"})
	if len(r.Drivers) != 1 || r.Drivers[0].Name != "mine.example.com" {
		t.Errorf("%+v %v", r.Drivers, r.Missing)
	}
	r = driverimport.Import(objects, driverimport.Options{Name: "-", ImageRoot: "/", NodeDir: "/n"})
	if len(r.Drivers) != 0 || len(r.Missing) != 1 || !strings.Contains(r.Missing[0].Why, "name: ") {
		t.Errorf("%+v %v", r.Drivers, r.Missing)
	}
}

// TestWithoutAccounts: a host that may not have their tokens runs the programs without.
func TestWithoutAccounts(t *testing.T) {
	o := driverimport.Options{NodeDir: "/n", Programs: map[string]string{"plugin": "/bin/a"}}
	with := driverimport.Import(read(t, "share"), o)
	if len(with.Drivers) != 1 || !strings.Contains(text(t, with), "serviceAccount: storage/share-node") {
		t.Fatalf("%+v %v", with.Drivers, with.Missing)
	}
	o.NoAccounts = true
	for _, p := range driverimport.Import(read(t, "share"), o).Drivers[0].Processes {
		if p.ServiceAccount != "" {
			t.Errorf("%s", p.ServiceAccount)
		}
	}
}

// FuzzImport: manifests are untrusted. Each driver that is imported can be run.
func FuzzImport(f *testing.F) {
	for _, name := range []string{"share", "loop", "cloud", "unknown"} {
		data, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var objects []*unstructured.Unstructured
		for d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); ; {
			u := &unstructured.Unstructured{}
			if d.Decode(&u.Object) != nil {
				break
			}
			objects = append(objects, u)
		}
		programs := map[string]string{"plugin": "/bin/a", "driver": "/bin/b", "loop": "/bin/c"}
		r := driverimport.Import(objects, driverimport.Options{Name: "x", NodeDir: "/n", Programs: programs})
		for _, d := range r.Drivers {
			if err := driverfile.Check(d); err != nil {
				t.Error(err)
			}
		}
		if len(r.Drivers) == 0 && len(r.Missing) == 0 {
			t.Error("there is neither a driver nor a reason why not")
		}
	})
}
