package exchange

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/node"
)

// hostpathInContainers plays csi-driver-host-path: its program $DRIVER, its manifest $MANIFEST with the rights of its
// sidecars, and its examples for users $EXAMPLES. Only names of images are changed, as nothing is pulled. A volume that
// upstream's sidecars have created is used with volplane's, which play all examples, and vice versa.
func hostpathInContainers(t *testing.T) {
	// Each of two snapshot-controllers must be ready for 35 s before the other one is exchanged.
	h := startContainers(t, "csi-hostpathplugin", 3*cluster.MountLimit)
	h.must(h.node.Import(h.ctx, hostpathImage(t)))
	manifest, err := os.ReadFile(os.Getenv("MANIFEST"))
	h.must(err)
	upstream := withLocalImages(string(manifest) + "\n---\n" + upstreamManifest(t, "external-snapshotter/v8",
		"snapshot-controller/setup-snapshot-controller.yaml"))
	h.applyWarned(upstream)
	h.works("example.com/sig-storage/")
	h.example("csi-storageclass", "csi-volumesnapshotclass", "csi-pvc", "csi-app")
	h.wait("pod/my-csi-app", "condition=Ready")
	h.must(os.WriteFile(h.file("my-csi-app", "csi-pvc"), []byte("of p1"), 0o600))
	h.example("csi-snapshot-v1")
	h.wait("volumesnapshot/new-snapshot-demo", "jsonpath={.status.readyToUse}=true")

	h.applyWarned(oneSed(t, upstream))
	h.works("example.com/volplane/")
	h.restores()
	h.blocks()
	h.example("csi-app-inline")
	h.wait("pod/my-csi-app-inline", "condition=Ready")
	h.Kubectl(h.ctx, t, "", "delete", "pods", "--selector=!app.kubernetes.io/name",
		"--timeout=1m")
	h.Kubectl(h.ctx, t, "", "delete", "pvc/csi-pvc", "pvc/pvc-raw", "volumesnapshot/new-snapshot-demo", "--timeout=1m")
	h.example("csi-pvc", "csi-app")
	h.wait("pod/my-csi-app", "condition=Ready")

	h.applyWarned(upstream)
	h.works("example.com/sig-storage/")
	h.apply(containersPod("restored", "hpvc-restore"))
	h.wait("pod/restored", "condition=Ready")
	h.reads("restored", "hpvc-restore")
	h.Kubectl(h.ctx, t, "", "delete", "pod/restored", "pod/my-csi-app", "--timeout=1m")
	h.Kubectl(h.ctx, t, "", "delete", "pvc", "--all", "--timeout=1m")
	h.Kubectl(h.ctx, t, "", "delete", "volumesnapshots", "--all", "--timeout=1m")
	h.nothingLeft()
	files, err := os.ReadDir(h.node.Path("/var/lib/csi-hostpath-data"))
	if err != nil || len(files) != 1 || files[0].Name() != "state.json" {
		t.Errorf("the driver has %v: %v", files, err)
	}
}

// restores plays the examples of a restored and of a cloned claim, and reads what was in their source.
func (h *containers) restores() {
	h.t.Helper()
	h.example("csi-restore")
	// The example does not say which claim it is a clone of.
	h.apply(strings.ReplaceAll(h.exampleText("csi-clone"), "src-hp-pvc", "csi-pvc"))
	for _, claim := range []string{"hpvc-restore", "hp-pvc-clone"} {
		h.apply(containersPod("uses-"+claim, claim))
		h.wait("pod/uses-"+claim, "condition=Ready")
		h.reads("uses-"+claim, claim)
	}
}

// blocks plays the examples of block devices, except two: that of a snapshot uses fields of a removed API, and that of
// a clone expects a filesystem of a block device.
func (h *containers) blocks() {
	h.t.Helper()
	h.example("csi-pvc-block", "csi-pod-block")
	h.apply(strings.NewReplacer("new-snapshot-demo", "raw-pvc-snapshot", "csi-pvc", "pvc-raw").
		Replace(h.exampleText("csi-snapshot-v1")))
	h.example("csi-block-pvc-restore")
	h.wait("pod/pod-raw", "condition=Ready")
	h.wait("pvc/raw-pvc-restore", "jsonpath={.status.phase}=Bound")
}

// applyWarned applies a manifest with a warning from the API server: two ports of its Pod have the same name.
func (h *containers) applyWarned(manifest string) {
	h.t.Helper()
	h.KubectlSays(h.ctx, h.t, manifest, "apply", "--validate=strict", "-f", "-")
}

func (h *containers) example(names ...string) {
	h.t.Helper()
	for _, name := range names {
		h.apply(h.exampleText(name))
	}
}

func (h *containers) exampleText(name string) string {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(os.Getenv("EXAMPLES"), name+".yaml"))
	h.must(err)
	return withLocalImages(string(text))
}

// withLocalImages names the images of a manifest as the node has them.
func withLocalImages(manifest string) string {
	return regexp.MustCompile(`(?m)(\bimage: *)(\S+)$`).ReplaceAllStringFunc(manifest, func(line string) string {
		name, _, _ := strings.Cut(path.Base(line[strings.LastIndex(line, " ")+1:]), ":")
		if name != "hostpathplugin" && name != "busybox" {
			name = "sig-storage/" + name
		}
		return "image: example.com/" + name + ":v1"
	})
}

// hostpathImage has the driver with the tools that it starts, and the shell of the examples.
func hostpathImage(t *testing.T) node.Image {
	t.Helper()
	out := node.Image{
		Names: map[string][]string{
			"example.com/hostpathplugin:v1": {"/hostpathplugin"}, "example.com/busybox:v1": nil,
		},
		Files: map[string]string{"/hostpathplugin": os.Getenv("DRIVER"), "/bin/busybox": "/bin/busybox"},
		Links: map[string]string{"/bin/sh": "busybox", "/bin/sleep": "busybox", "/bin/tail": "busybox"},
	}
	for _, tool := range []string{
		"blkid", "cp", "dd", "fallocate", "findmnt", "gzip", "losetup", "mount", "tar", "umount",
	} {
		at, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		needs, err := exec.CommandContext(t.Context(), "ldd", at).Output()
		if err != nil {
			t.Fatal(err)
		}
		out.Files["/bin/"+tool] = at
		for _, library := range regexp.MustCompile(`/\S+`).FindAllString(string(needs), -1) {
			out.Files[library] = library
		}
	}
	return out
}
