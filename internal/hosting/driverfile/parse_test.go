package driverfile_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"volplane.dev/volplane/internal/hosting/driverfile"
)

// header begins a file whose rest is a list of processes or more.
const header = "apiVersion: volplane.dev/v1\nkind: Driver\nname: x.example.com\n"

func TestParsed(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "full.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := driverfile.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	want := driverfile.Driver{
		APIVersion: "volplane.dev/v1", Kind: "Driver", Name: "hostpath.csi.k8s.io", Class: "fast",
		RestartedAt: "2026-01-31T12:00:00Z",
		Processes: []driverfile.Process{
			{
				Roles:      []driverfile.Role{driverfile.RoleNode},
				Exec:       []string{"/usr/local/bin/hostpathplugin", "--endpoint=$(CSI_ENDPOINT)", "--nodeid=$(NODE_NAME)"},
				Env:        map[string]string{"DEBUG": "1", "EMPTY": ""},
				WorkingDir: "/srv",
			},
			{
				Roles: []driverfile.Role{driverfile.RoleController},
				Exec:  []string{"/usr/local/bin/hostpathplugin", ""},
				EnvFromSecret: []driverfile.SecretVariable{
					{Name: "TOKEN", Secret: "storage/cloud", Key: "token"},
				},
				Socket: "/run/hp/controller.sock",
			},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// JSON is YAML, too.
	text := `{"apiVersion": "volplane.dev/v1", "kind": "Driver", "name": "x", "processes": [` +
		`{"roles": ["controller", "node"], "socket": "/run/x.sock"}]}`
	if d, err := driverfile.Parse([]byte(text)); err != nil || d.Processes[0].Socket != "/run/x.sock" {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestRefused: the error names the field and says what to write.
func TestRefused(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "refused.txt"))
	if err != nil {
		t.Fatal(err)
	}
	letters := strings.NewReplacer("\nX\n", "\n"+header, "\nP\n", "\n"+header+"processes:\n- roles: [controller, node]\n")
	_, table, _ := strings.Cut(string(data), "\n== ")
	for paragraph := range strings.SplitSeq(table, "\n== ") {
		name, rest, _ := strings.Cut(paragraph, "\n")
		text, want, _ := strings.Cut(rest, "\n> ")
		refused(t, name, strings.TrimPrefix(letters.Replace("\n"+text+"\n"), "\n"), strings.TrimSpace(want))
	}
	refused(t, "empty", "", "apiVersion <none> and kind <none>")
	refused(t, "too long", header+"#"+strings.Repeat("x", 64<<10), "longer than 65536 bytes")
}

func refused(t *testing.T, name, text, want string) {
	t.Helper()
	_, err := driverfile.Parse([]byte(text))
	if err == nil || !contains(err.Error(), want) {
		t.Errorf("%s: %v; want %s", name, err, want)
	}
	if err != nil && strings.Contains(err.Error(), "topsecret") {
		t.Errorf("%s: the value is in the error: %v", name, err)
	}
}

// contains says whether a text has the parts of want, which .* separates, in this order.
func contains(text, want string) bool {
	for part := range strings.SplitSeq(want, ".*") {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return true
}

// TestEveryMistake: all mistakes are reported together.
func TestEveryMistake(t *testing.T) {
	err := driverfile.Check(driverfile.Driver{
		Name: "-", Class: "/", RestartedAt: "x", Processes: []driverfile.Process{{Exec: []string{"\xff"}}},
	})
	for _, want := range []string{
		"apiVersion: ", "kind: ", "name: ", "class: ", "restartedAt: ", "roles: ", "exec: ", "exec[0]: it is not UTF-8",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

func TestSockets(t *testing.T) {
	both := driverfile.Process{Roles: []driverfile.Role{driverfile.RoleController, driverfile.RoleNode}}
	node := driverfile.Process{Roles: []driverfile.Role{driverfile.RoleNode}}
	controller := driverfile.Process{Roles: []driverfile.Role{driverfile.RoleController}}
	elsewhere := driverfile.Process{Roles: both.Roles, Socket: "/run/x"}
	d := driverfile.Driver{Name: "x"}
	for _, c := range []struct {
		process      driverfile.Process
		socket, name string
	}{
		{both, "/p/x/csi.sock", "x"},
		{node, "/p/x/csi.sock", "x-node"},
		{controller, "/p/x/controller.sock", "x-controller"},
		{elsewhere, "/run/x", "x"},
	} {
		if got := d.Socket(c.process, "/p"); got != c.socket {
			t.Errorf("%v: socket %s, want %s", c.process.Roles, got, c.socket)
		}
		if got := d.ProcessName(c.process); got != c.name {
			t.Errorf("%v: name %s, want %s", c.process.Roles, got, c.name)
		}
	}
}

// TestExpanded: the rules are those of the command of a container in Kubernetes.
func TestExpanded(t *testing.T) {
	vars := map[string]string{"A": "1", "B_C": "$(A)", "": "empty", "EMPTY": ""}
	for text, want := range map[string]string{
		"":                    "",
		"plain":               "plain",
		"$(A)":                "1",
		"x$(A)y$(A)z":         "x1y1z",
		"$(B_C)":              "$(A)",
		"[$(EMPTY)]":          "[]",
		"$$(A)":               "$(A)",
		"$$$(A)":              "$1",
		"$$$$(A)":             "$$(A)",
		"$(UNKNOWN)":          "$(UNKNOWN)",
		"$(UNKNOWN)$(A)":      "$(UNKNOWN)1",
		"$A ${A} $":           "$A ${A} $",
		"$(A":                 "$(A",
		"$( A)":               "$( A)",
		"$()":                 "empty",
		"cost: 5$ (A)":        "cost: 5$ (A)",
		"$$":                  "$",
		"$(A$(A))":            "$(A$(A))",
		"--endpoint=$(A):$$x": "--endpoint=1:$x",
	} {
		if got := driverfile.Expand(text, vars); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestStarted: a command knows all variables, and a variable those that volplane sets.
func TestStarted(t *testing.T) {
	p := driverfile.Process{
		Exec:          []string{"/bin/x", "--a=$(A)", "--e=$(CSI_ENDPOINT)", "--t=$(TOKEN)", "--u=$(UNKNOWN)"},
		Env:           map[string]string{"A": "on $(NODE_NAME) $(TOKEN) $(B)", "B": "b", "PATH": "/sbin:$(PATH)"},
		EnvFromSecret: []driverfile.SecretVariable{{Name: "TOKEN", Secret: "ns/s", Key: "k"}},
	}
	host := map[string]string{"CSI_ENDPOINT": "unix:///run/x", "NODE_NAME": "n1", "PATH": "/bin"}
	argv, env := p.Start(host, map[string]string{"TOKEN": "$(A)"})
	wantArgv := []string{"/bin/x", "--a=on n1 $(TOKEN) $(B)", "--e=unix:///run/x", "--t=$(A)", "--u=$(UNKNOWN)"}
	wantEnv := []string{"A=on n1 $(TOKEN) $(B)", "B=b", "CSI_ENDPOINT=unix:///run/x", "NODE_NAME=n1", "PATH=/sbin:/bin", "TOKEN=$(A)"}
	if !slices.Equal(argv, wantArgv) || !slices.Equal(env, wantEnv) {
		t.Errorf("%q\n%q", argv, env)
	}
	if len(p.Env) != 3 || len(host) != 3 {
		t.Errorf("the driver or the host was changed: %q, %q", p.Env, host)
	}
}

// FuzzParse: what is read is written and read back equal, and nothing panics.
func FuzzParse(f *testing.F) {
	full, err := os.ReadFile(filepath.Join("testdata", "full.yaml"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full)
	for _, rest := range []string{
		"exec: [/bin/x, \"\", yes, \"1e3\", \"=\", \"\u2028\"]", "socket: /run/x", "exec: [/bin/x]\n  env: {}", "exec: []",
	} {
		f.Add([]byte(header + "processes:\n- roles: [controller, node]\n  " + rest + "\n"))
	}
	dir := driverfile.Dir(filepath.Join(f.TempDir(), "drivers.d"))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := driverfile.Parse(data)
		if err != nil {
			return
		}
		if err := dir.Put(d); err != nil {
			t.Fatal(err)
		}
		if got, err := dir.Get(d.Name); err != nil || !cmp.Equal(d, got) {
			t.Errorf("%v\n%s", err, cmp.Diff(d, got))
		}
		if err := dir.Remove(d.Name); err != nil {
			t.Fatal(err)
		}
	})
}
