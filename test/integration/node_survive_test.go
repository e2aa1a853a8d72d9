package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/mount"
)

// loss says which parts of one Pod's volume are missing when the agent starts.
type loss struct{ journal, target, staging, pod bool }

func (l loss) name() string {
	return strings.ToLower(fmt.Sprintf("j%vt%vs%vp%v", l.journal, l.target, l.staging, l.pod))
}

// losses returns all combinations.
func losses() []loss {
	var out []loss
	for n := range 16 {
		out = append(out, loss{n&1 > 0, n&2 > 0, n&4 > 0, n&8 > 0})
	}
	return out
}

// TestNodeSurvives: any part of the journal, of the mounts and of the Pods is missing when the agent
// starts, within one boot of the host or after a reboot. Volumes that Pods need have their data, and other
// volumes are unmounted.
func TestNodeSurvives(t *testing.T) {
	for _, reboot := range []bool{false, true} {
		t.Run(fmt.Sprint("reboot: ", reboot), func(t *testing.T) {
			h := newHost(t)
			all := losses()
			for _, l := range all {
				h.claim(l.name(), corev1.PersistentVolumeFilesystem)
				h.pod(l.name(), l.name(), "")
			}
			for _, l := range all {
				h.must(os.WriteFile(filepath.Join(h.mounted(l.name()), "f"), []byte(l.name()), 0o600))
			}
			h.stopAgent()
			for _, l := range all {
				h.lose(l, reboot)
			}
			h.startAgent()
			for _, l := range all {
				if l.pod {
					h.gone(l.name())
					continue
				}
				h.eventually(func() string {
					if got, err := os.ReadFile(filepath.Join(h.mounted(l.name()), "f")); err != nil || string(got) != l.name() {
						return fmt.Sprintf("%+v: read %q, %v", l, got, err)
					}
					return ""
				})
				h.remove(l.name())
			}
			for _, l := range all {
				h.gone(l.name())
			}
			h.clean()
			for _, below := range []string{"pods/*", "plugins/kubernetes.io/csi/*/*"} {
				if left, _ := filepath.Glob(filepath.Join(h.dir, below)); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			}
		})
	}
}

// lose removes these parts of a Pod's volume while the agent does not run.
func (h *host) lose(l loss, reboot bool) {
	h.t.Helper()
	target := h.mounted(l.name())
	staging, record := h.record(l.name())
	if l.target || reboot {
		h.must(mount.Unmount(target))
	}
	if l.staging || reboot {
		h.must(mount.Unmount(staging))
	}
	switch {
	case l.journal:
		h.must(os.Remove(record))
	case reboot:
		text, err := os.ReadFile(record)
		h.must(err)
		boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		h.must(err)
		h.must(os.WriteFile(record,
			[]byte(strings.ReplaceAll(string(text), strings.TrimSpace(string(boot)), "an-earlier-one")), 0o600))
	}
	if l.pod {
		h.remove(l.name())
	}
}

// record returns the staging path of a Pod's volume, and its file in the journal.
func (h *host) record(pod string) (staging, path string) {
	h.t.Helper()
	files, err := filepath.Glob(filepath.Join(h.dir, "journal", "*.json"))
	h.must(err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		h.must(err)
		if !strings.Contains(string(text), fmt.Sprintf(`"podName":%q`, pod)) {
			continue
		}
		_, rest, _ := strings.Cut(string(text), `"stagingPath":"`)
		staging, _, _ = strings.Cut(rest, `"`)
		return staging, f
	}
	h.t.Fatalf("no record of pod %s", pod)
	return "", ""
}

// TestNodeKeepsRunningMounts: a Pod's volume stays mounted although the driver's socket, the volume object
// and the journal disappear.
func TestNodeKeepsRunningMounts(t *testing.T) {
	h := newHost(t)
	h.claim("c", corev1.PersistentVolumeFilesystem)
	h.pod("p", "c", "")
	path := h.mounted("p")
	open, err := os.Create(filepath.Join(path, "open"))
	h.must(err)
	defer open.Close()
	var before, after unix.Statx_t
	h.must(unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &before))
	h.stopAgent()
	_, record := h.record("p")
	h.must(os.Remove(record))
	socket := filepath.Join(h.dir, "plugins_registry", "local.volplane.dev-reg.sock")
	h.must(os.Rename(socket, socket+".away"))
	h.startAgent()
	h.eventually(func() string {
		if _, err := os.Stat(record); err != nil {
			return "the record is not there again"
		}
		return ""
	})
	h.must(os.Rename(socket+".away", socket))
	h.must(unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &after))
	if before.Mnt_id != after.Mnt_id {
		t.Error("it is another mount")
	}
	_, err = open.WriteString("still open")
	h.must(err)
	h.must(open.Close())
	h.remove("p")
	h.gone("p")
	h.clean()
}
