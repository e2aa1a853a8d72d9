package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	driverUnitFile = "../../deploy/systemd/volplane-driver@.service"
	nodeUnitFile   = "../../deploy/systemd/volplane-node.service"
)

// TestUnits: systemd-analyze finds nothing wrong with the units.
func TestUnits(t *testing.T) {
	dir := t.TempDir()
	units := map[string]string{
		unitFile: "volplane.service", driverUnitFile: "volplane-driver@csi.example.com.service",
		nodeUnitFile: "volplane-node.service",
		"../../deploy/systemd/volplane-docker.socket":  "volplane-docker.socket",
		"../../deploy/systemd/volplane-storage.socket": "volplane-storage.socket",
	}
	for from, to := range units {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		// The program is not installed on this machine.
		text := regexp.MustCompile("/usr/local/bin/volplaned?").ReplaceAllString(string(data), "/bin/true")
		if err := os.WriteFile(filepath.Join(dir, to), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A socket is verified with its service.
	for _, to := range units {
		c := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", filepath.Join(dir, to))
		if out, err := c.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", to, err, out)
		}
	}
}

// TestNodeUnit: a node agent may do what one in the process of the control plane may, and stops as that does.
func TestNodeUnit(t *testing.T) {
	var rest []string
	for _, name := range []string{unitFile, nodeUnitFile} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		_, text, found := strings.Cut(string(data), "\nKillMode=")
		if !found {
			t.Fatalf("%s has no KillMode", name)
		}
		rest = append(rest, text)
	}
	if rest[0] != rest[1] {
		t.Errorf("the units differ:\n%s\n%s", rest[0], rest[1])
	}
}

// TestDriverUnit: a shell reads the command in a driver's systemd unit, and the unit leaves mounts and their servers to
// the host.
func TestDriverUnit(t *testing.T) {
	data, err := os.ReadFile(driverUnitFile)
	if err != nil {
		t.Fatal(err)
	}
	unit := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(data), "")
	for _, want := range []string{
		"\nKillMode=process\n", "\nOOMPolicy=continue\n", "\nBefore=volplane.service\n",
		"\nEnvironmentFile=/etc/volplane/drivers/%i.env\n",
	} {
		if !strings.Contains(unit, want) {
			t.Errorf("the unit does not say %q", want)
		}
	}
	own := regexp.MustCompile(`(?m)^(Private|Protect|ReadOnlyPaths|ReadWritePaths|InaccessiblePaths|BindPaths|` +
		`TemporaryFileSystem|RootDirectory|RootImage|MountFlags|DynamicUser|Requires|BindsTo|PartOf)\w*=`)
	if found := own.FindString(unit); found != "" {
		t.Errorf("the unit says %s, which hides the mounts of the driver or ends it with volplane", found)
	}
	_, line, _ := strings.Cut(unit, "\nExecStart=/bin/sh -c '")
	script, _, found := strings.Cut(line, "'\n")
	if !found {
		t.Fatal("the unit starts no shell")
	}
	script = strings.NewReplacer("$$", "$", "%i", "csi.example.com").Replace(script)
	for command, want := range map[string]string{
		`printf '[%s]' $CSI_ENDPOINT "a  b" 'c"$d'`: `[unix:///run/x][a  b][c"$d]`,
		"": "write the command of the driver to /etc/volplane/drivers/csi.example.com.env",
	} {
		c := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
		c.Env = []string{"PATH=/usr/bin:/bin", "CSI_ENDPOINT=unix:///run/x", "DRIVER_EXEC=" + command}
		if out, err := c.CombinedOutput(); !strings.Contains(string(out), want) || (err == nil) != (command != "") {
			t.Errorf("%s: %v: %s", command, err, out)
		}
	}
}
