package csi_test

import (
	"strings"
	"testing"

	"volplane.dev/volplane/internal/csi"
)

func TestAccessMode(t *testing.T) {
	for _, row := range strings.Split(strings.TrimSpace(`
		ReadWriteOnce                  SINGLE_NODE_WRITER        SINGLE_NODE_MULTI_WRITER
		ReadWriteOncePod               SINGLE_NODE_WRITER        SINGLE_NODE_SINGLE_WRITER
		ReadOnlyMany                   MULTI_NODE_READER_ONLY    MULTI_NODE_READER_ONLY
		ReadWriteMany                  MULTI_NODE_MULTI_WRITER   MULTI_NODE_MULTI_WRITER
		ReadWriteMany,ReadWriteOnce    MULTI_NODE_MULTI_WRITER   MULTI_NODE_MULTI_WRITER
		ReadOnlyMany,ReadWriteMany     MULTI_NODE_MULTI_WRITER   MULTI_NODE_MULTI_WRITER
		ReadWriteOnce,ReadOnlyMany     error                     error
		ReadWriteOncePod,ReadWriteOnce error                     error
		ReadWriteMany,ReadWriteOncePod error                     error
		Unheard                        error                     error
		-                              error                     error
	`), "\n") {
		f := strings.Fields(row)
		modes := strings.Split(f[0], ",")
		if f[0] == "-" {
			modes = nil
		}
		for i, single := range []bool{false, true} {
			mode, err := csi.AccessMode(modes, single)
			got := mode.String()
			if err != nil {
				got = "error"
			}
			if want := f[1+i]; got != want {
				t.Errorf("%s, single %v: %s, want %s", f[0], single, got, want)
			}
		}
	}
}

func TestCapability(t *testing.T) {
	mode, err := csi.AccessMode([]string{"ReadWriteOnce"}, false)
	if err != nil {
		t.Fatal(err)
	}
	if c := csi.Capability(mode, true, "ext4", []string{"ro"}); c.GetBlock() == nil || c.GetMount() != nil {
		t.Errorf("block: %v", c)
	}
	c := csi.Capability(mode, false, "ext4", []string{"noatime"})
	if c.GetMount().GetFsType() != "ext4" || len(c.GetMount().GetMountFlags()) != 1 ||
		c.GetAccessMode().GetMode() != mode {
		t.Errorf("mount: %v", c)
	}
}

// TestKubernetesModes: a capability made from Kubernetes' access modes has these modes.
func TestKubernetesModes(t *testing.T) {
	for _, mode := range []string{"ReadWriteOnce", "ReadWriteOncePod", "ReadOnlyMany", "ReadWriteMany"} {
		for volumeMode, block := range map[string]bool{"Block": true, "Filesystem": false} {
			made, err := csi.AccessMode([]string{mode}, true)
			if err != nil {
				t.Fatal(err)
			}
			a, v := csi.KubernetesModes[string, string](csi.Capability(made, block, "", nil))
			if a != mode || v != volumeMode {
				t.Errorf("%s %s: %s %s", mode, volumeMode, a, v)
			}
		}
	}
	if a, v := csi.KubernetesModes[string, string](nil); a != "" || v != "" {
		t.Errorf("nothing: %s %s", a, v)
	}
}
