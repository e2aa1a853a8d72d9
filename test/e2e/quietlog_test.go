package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/test/internal/plane"
)

// TestGoodStartsAndEndsAreQuiet: programs that start and end normally log only what a user must know, and all of it in
// the requested format. With -v=5 each of those that call drivers logs its calls.
func TestGoodStartsAndEndsAreQuiet(t *testing.T) {
	for name, test := range map[string]struct {
		flag  string
		right func(program, line string) bool
		has   string
	}{
		"default": {"--logging-format=json", func(_, line string) bool {
			return strings.HasPrefix(line, `{"time":"`) && strings.Contains(line, `"level":"INFO"`)
		}, ""},
		"verbose": {"-v=5", func(_, line string) bool { return strings.HasPrefix(line, "time=") }, "GetPluginInfo"},
	} {
		t.Run(name, func(t *testing.T) {
			logs := playPrograms(t, test.flag)
			if len(logs) != 5 {
				t.Fatalf("%d programs", len(logs))
			}
			for program, path := range logs {
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if program != "small" && !strings.Contains(string(text), test.has) {
					t.Errorf("%s does not log %s", program, test.has)
				}
				for line := range strings.Lines(string(text)) {
					if !test.right(program, line) && !isCanceledRead(line) {
						t.Errorf("%s: %s", program, line)
					}
				}
			}
		})
	}
}

// isCanceledRead says whether a line is one of etcd's client about a request that its caller has given up, as the API
// server's own do. The client sets its logger when it is loaded, and it cannot be replaced.
func isCanceledRead(line string) bool {
	return strings.HasPrefix(line, `{"level":"warn"`) && strings.Contains(line, `"logger":"etcd-client"`) &&
		strings.Contains(line, "context canceled")
}

// playPrograms starts all programs, waits until each works, ends them, and returns the paths of their logs.
func playPrograms(t *testing.T, flag string) map[string]string {
	t.Helper()
	dir, err := os.MkdirTemp("", "q-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	data := filepath.Join(dir, "d")
	p, err := plane.Start(t.Context(), data, flag)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	logs := map[string]string{"volplaned": data + ".log"}
	run := func(t *testing.T, name, ready, program string, args ...string) {
		t.Helper()
		logs[name] = filepath.Join(dir, name+".log")
		process, err := plane.Run(logs[name], program, append(args, flag)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(process.Stop)
		until(t, name+" says: "+ready, func() bool {
			text, _ := os.ReadFile(logs[name])
			return strings.Contains(string(text), ready)
		})
	}
	// The programs end before the control plane does.
	t.Run("programs", func(t *testing.T) {
		driver := func(name string) string {
			c := csitest.Full()
			c.Name = name
			return csitest.Start(t, c).Socket
		}
		here, alone, other := driver("here.example.com"), driver("alone.example.com"), driver("other.example.com")
		config, err := p.Invite("node2")
		if err != nil {
			t.Fatal(err)
		}
		run(t, "node", "driver registered", "volplane", "node", "--join", config, "--root-dir", filepath.Join(dir, "n2"),
			"--pool", p.Pool())
		run(t, "small", "driver is registered", "volplane-node-sidecars",
			"--controllers=node-driver-registrar,livenessprobe", "--csi-address="+here,
			"--node-driver-registrar-kubelet-registration-path="+here,
			"--node-driver-registrar-plugin-registration-path="+filepath.Join(data, "node", "plugins_registry"),
			"--livenessprobe-http-endpoint="+plane.FreeAddress("127.0.0.1"))
		run(t, "controller", "controllers work", "volplane", "controller", "--csi-address", alone, "--kubeconfig",
			p.Kubeconfig(), "--leader-election-namespace", "default")
		run(t, "csi-attacher", "controllers work", "volplane", "csi-attacher", "--csi-address", other, "--kubeconfig",
			p.Kubeconfig(), "--leader-election-namespace", "default")
	})
	return logs
}
