package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// volplane is the program that the images have.
const volplane = "volplane"

// program is a program that is released.
type program struct {
	name string
	// host says that the packages and archives for hosts have it.
	host bool
	// images are the names, other than its own, under which images start it; each is also the name of an image.
	images []string
}

// programs are all released programs that `make build` builds from this source.
func programs() []program {
	return []program{
		{name: volplane, host: true, images: []string{
			"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "snapshot-controller",
			"csi-external-health-monitor-controller", "csi-snapshot-metadata",
		}},
		{name: "volplane-node-sidecars", images: []string{"csi-node-driver-registrar", "livenessprobe"}},
		{name: "volplaned", host: true},
	}
}

// aliases are more names in the images, of programs that some deployments start by name.
func aliases() map[string]string {
	return map[string]string{"node-driver-registrar": "csi-node-driver-registrar", "csi-sidecars": volplane}
}

// build builds all programs.
func (r *release) build(ctx context.Context) error {
	for _, arch := range r.platforms {
		if err := r.target(ctx, "build", "linux", arch, r.folder(arch)); err != nil {
			return err
		}
	}
	return nil
}

// target makes `make` build a target for a system, because only the Makefile knows how.
func (r *release) target(ctx context.Context, name, system, arch, to string, more ...string) error {
	// An archive of the source has no history, but must give the same bytes; a version is a tag.
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "-C", r.root, name, "BIN="+to, "VERSION="+r.version,
		"REVISION="+r.version)
	cmd.Args = append(cmd.Args, more...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") }),
		"GOOS="+system, "GOARCH="+arch)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("make %s for %s/%s: %w", name, system, arch, err)
	}
	return nil
}

func (r *release) folder(arch string) string { return filepath.Join(r.bin, arch) }

// sidecars are the names of all images that start a program as one of upstream's.
func sidecars() []string {
	var out []string
	for _, p := range programs() {
		out = append(out, p.images...)
	}
	return out
}

// read returns a built program.
func (r *release) read(arch, name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(r.folder(arch), name))
}
