package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/planetest"
)

// xfsByDefault replaces the default class by one of xfs, which can grow while it is mounted even without
// CAP_SYS_RESOURCE; ext4 cannot.
const xfsByDefault = `
kubectl annotate storageclass local storageclass.kubernetes.io/is-default-class-
cat <<END | volplane apply -f -
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: xfs
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: local.volplane.dev
parameters: {csi.storage.k8s.io/fstype: xfs}
allowVolumeExpansion: true
volumeBindingMode: WaitForFirstConsumer
END
`

// commandsOf returns the blocks of commands in a section of a document.
func commandsOf(t *testing.T, document, section string) (blocks []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", document))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(data), "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	for i, part := range strings.Split(text, "```\n") {
		if i%2 == 1 {
			blocks = append(blocks, strings.TrimSpace(part))
		}
	}
	return blocks
}

// typeInto runs a shell script as a user of a control plane.
func typeInto(t *testing.T, p *plane.Plane, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "sh", "-c", "set -ex\n"+script)
	c.Dir = p.Dir
	c.Env = append(os.Environ(), "KUBECONFIG="+p.Kubeconfig(), "VOLPLANE_DATA_DIR="+p.Dir,
		"PATH="+filepath.Dir(plane.Bin("volplane"))+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// nothingLeft waits until nothing of any claim is left.
func nothingLeft(t *testing.T, p *plane.Plane) {
	t.Helper()
	client, err := p.Client()
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, func() string {
		left, err := p.Leftovers(t.Context(), client)
		if err != nil {
			return err.Error()
		}
		return strings.Join(left, "\n")
	})
}

// TestUninstallCommands types the commands of docs/day-two.md that remove volumes with everything in them, in a control
// plane with a mounted volume, one that is restored from its snapshot, and the snapshot: nothing is left. The command
// that lists mounts lists them before, and nothing after.
func TestUninstallCommands(t *testing.T) {
	t.Parallel()
	blocks := commandsOf(t, "docs/day-two.md", "Uninstall")
	if len(blocks) != 4 {
		t.Fatalf("there are %d blocks: %q", len(blocks), blocks)
	}
	p := planetest.Start(t)
	mounted := strings.ReplaceAll(blocks[2], "/var/lib/volplane", p.Dir)
	at := filepath.Join(t.TempDir(), "data")
	out := typeInto(t, p, "volplane mount data "+at+" --create --size 64Mi\nvolplane snapshot data before\n"+
		"volplane create copy --size 64Mi --from-snapshot before\n"+
		"test -n \"$("+mounted+")\"\n"+blocks[1]+"\ntest -z \"$("+mounted+")\"\n"+
		"volplane get pods,pvc,volumesnapshots,volumesnapshotcontents -A")
	if !strings.Contains(out, "persistentvolumeclaim/copy deleted") || !strings.HasSuffix(out, "No resources found\n") {
		t.Error(out)
	}
	nothingLeft(t, p)
}

// TestSixCommands types the six commands of README.md into a shell, and checks the effect of each on files: the volume
// is larger, the copy has the content of the snapshot, and in the end nothing is left.
func TestSixCommands(t *testing.T) {
	t.Parallel()
	// Their output follows in blocks of its own.
	commands := strings.Split(commandsOf(t, "README.md", "Six commands")[0], "\n")
	if len(commands) != 6 {
		t.Fatalf("README.md has %d commands: %q", len(commands), commands)
	}
	p := planetest.Start(t)
	at := filepath.Join(t.TempDir(), "data")
	script := xfsByDefault + commands[0] + "\n" + commands[1] + "\n" +
		"echo old > /srv/data/file; before=$(df --output=size /srv/data | tail -1)\n" + commands[2] + "\n" +
		"test $(df --output=size /srv/data | tail -1) -gt $((before * 3 / 2))\n" + commands[3] + "\n" +
		"echo new > /srv/data/file\n" + commands[4] + "\n" +
		"test $(cat /srv/data-before/file) = old; test $(cat /srv/data/file) = new\n" + commands[5] + "\n" +
		"volplane umount /srv/data-before && volplane delete pvc data-before\n" +
		"volplane delete volumesnapshot before-upgrade\n"
	typeInto(t, p, strings.ReplaceAll(script, "/srv/data", at))
	nothingLeft(t, p)
}
