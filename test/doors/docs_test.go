package doors

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/test/internal/plane"
)

// examples returns the code blocks of docs/docker.md in a language.
func examples(t *testing.T, language string) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/docker.md")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		out = append(out, m[1])
	}
	return out
}

// TestComposeFile: the compose file names our driver, with options that the plugin accepts.
func TestComposeFile(t *testing.T) {
	var file struct {
		Services map[string]struct{ Image string }
		Volumes  map[string]struct {
			Driver     string
			DriverOpts map[string]string `json:"driver_opts"`
			External   bool
		}
	}
	all := examples(t, "yaml")
	if len(all) != 1 {
		t.Fatalf("%d compose files", len(all))
	}
	if err := yaml.Unmarshal([]byte(all[0]), &file); err != nil {
		t.Fatal(err)
	}
	data := file.Volumes["data"]
	if len(file.Services) != 1 || data.Driver != "volplane" || data.DriverOpts["size"] != "10Gi" ||
		data.DriverOpts["class"] != "local" || len(data.DriverOpts) != 2 || !file.Volumes["shared"].External {
		t.Errorf("the compose file says %+v", file)
	}
}

// TestQuadlets: podman's generator, which Debian's podman 4.3 lacks, makes units from the Quadlets. A restart of the
// control plane stops neither of them.
func TestQuadlets(t *testing.T) {
	all := examples(t, "ini")
	if len(all) != 2 {
		t.Fatalf("%d Quadlets", len(all))
	}
	dir := t.TempDir()
	for i, name := range []string{"data.volume", "db.container"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(all[i]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := run(t.Context(), []string{"QUADLET_UNIT_DIRS=" + dir}, plane.Bin("quadlet"), "--dryrun")
	for _, want := range []string{
		"podman volume create --ignore --driver volplane --opt=size=10Gi data", "-v data:/var/lib/db example.com/db",
		"After=volplane.service", "Requires=data-volume.service\nAfter=data-volume.service",
	} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("the units lack %q: %v\n%s", want, err, out)
		}
	}
	if strings.Contains(out, "Requires=volplane.service") {
		t.Errorf("a restart of volplane.service stops what uses it:\n%s", out)
	}
}
