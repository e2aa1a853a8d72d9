package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"volplane.dev/volplane/release/packages"
	"volplane.dev/volplane/release/tree"
)

//go:embed copyright.txt
var copyrightText string

//go:embed lintian.txt
var lintianText string

// completeScript is the script that kubectl runs to complete the arguments of its plugin.
const completeScript = "#!/bin/sh\nexec kubectl-why_volume __complete \"$@\"\n"

// hosts makes the archives and packages.
func (r *release) hosts(ctx context.Context) error {
	shared, err := r.shared(ctx)
	if err != nil {
		return err
	}
	for _, arch := range r.platforms {
		var built tree.Tree
		for _, p := range programs() {
			if body, err := r.read(arch, p.name); err != nil {
				return err
			} else if p.host {
				built = append(built, tree.Program("bin/"+p.name, body))
			}
		}
		files := append(built, shared...)
		if err := r.archive(arch, files); err != nil {
			return err
		}
		if err := r.pack(ctx, arch, files); err != nil {
			return err
		}
	}
	return nil
}

// archive makes the archive for unpacking below /usr/local.
func (r *release) archive(arch string, files tree.Tree) error {
	for _, name := range []string{"LICENSE", "CHANGELOG.md"} {
		data, err := os.ReadFile(filepath.Join(r.root, name))
		if err != nil {
			return err
		}
		files = append(files, tree.Text("share/doc/volplane/"+name, string(data)))
	}
	units, err := r.units("/usr/local")
	if err != nil {
		return err
	}
	name := fmt.Sprintf("volplane-%s-linux-%s", r.tag(), arch)
	files = append(files, tree.Text("share/doc/volplane/"+thirdParty, r.licenses))
	data, err := append(files, units...).Below(name).TarGz(r.when)
	if err != nil {
		return err
	}
	return r.write(name+".tar.gz", data)
}

// pack makes the packages of the files, which go below /usr.
func (r *release) pack(ctx context.Context, arch string, files tree.Tree) error {
	changes, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	if changes, err = tree.Gzip(changes); err != nil {
		return err
	}
	licenses, err := tree.Gzip([]byte(r.licenses))
	if err != nil {
		return err
	}
	units, err := r.units("/usr")
	if err != nil {
		return err
	}
	files = append(append(files, units...), tree.Text("share/doc/volplane/copyright", copyrightText),
		// mount(8) looks for its helpers in /sbin, which is /usr/sbin.
		tree.Link("sbin/mount.volplane", "../bin/volplane"), tree.Link("sbin/umount.volplane", "../bin/volplane"),
		tree.Link("share/man/man8/mount.volplane.8.gz", "volplane.8.gz"),
		tree.Link("share/man/man8/umount.volplane.8.gz", "volplane.8.gz"),
		tree.File{Path: "share/doc/volplane/" + thirdParty + ".gz", Mode: 0o644, Body: licenses},
		tree.File{Path: "share/doc/volplane/changelog.gz", Mode: 0o644, Body: changes})
	p := packages.Package{
		Name: "volplane", Version: r.number(), Arch: arch, When: r.when, License: "Apache-2.0", Homepage: homepage,
		Maintainer: "volplane <packages@volplane.dev>",
		Summary:    "storage control plane: claims, volumes and mounts through CSI drivers",
		Description: []string{
			"volplane turns a PersistentVolumeClaim into a mounted volume, and cleans up",
			"after it, through CSI drivers: on one machine or several, without a Kubernetes",
			"cluster. It has the Kubernetes API server in it, so kubectl works with it.",
		},
		Files: append(files.Below("usr"), tree.Directory("etc/volplane"), tree.Directory("etc/volplane/drivers")),
	}
	rpm := p
	rpm.Requires, rpm.Recommends = []string{"/usr/bin/mount"}, []string{"e2fsprogs", "xfsprogs", "btrfs-progs"}
	rpm.Files = append(rpm.Files, tree.Directory("usr/share/doc/volplane"))
	if err := rpm.RPM(filepath.Join(r.out, rpm.RPMName())); err != nil {
		return err
	}
	p.Requires, p.Recommends = []string{"mount"}, rpm.Recommends
	p.Files = append(p.Files, tree.Text("usr/share/lintian/overrides/volplane", lintianText))
	return p.Deb(ctx, filepath.Join(r.out, p.DebName()))
}

// units returns the units of systemd for programs below prefix.
func (r *release) units(prefix string) (tree.Tree, error) {
	var out tree.Tree
	for _, name := range []string{
		"volplane.service", "volplane-node.service", "volplane-driver@.service",
		"volplane-docker.socket", "volplane-storage.socket",
	} {
		data, err := os.ReadFile(filepath.Join(r.root, "deploy", "systemd", name))
		if err != nil {
			return nil, err
		}
		// The programs are named in those that start them; in a driver's, it is an example.
		text := strings.ReplaceAll(string(data), "ExecStart=/usr/local/bin/", "ExecStart="+prefix+"/bin/")
		out = append(out, tree.Text("lib/systemd/system/"+name, text))
	}
	return out, nil
}

// shared returns the files that are the same on all architectures: volplane's own output.
func (r *release) shared(ctx context.Context) (tree.Tree, error) {
	out := tree.Tree{
		tree.Link("bin/kubectl-why_volume", volplane),
		tree.Program("bin/kubectl_complete-why_volume", []byte(completeScript)),
		tree.Link("share/man/man8/kubectl-why_volume.8.gz", "volplane-why.8.gz"),
	}
	for shell, at := range map[string]string{
		"bash": "bash-completion/completions/volplane", "zsh": "zsh/site-functions/_volplane",
		"fish": "fish/vendor_completions.d/volplane.fish",
	} {
		text, err := r.says(ctx, "completion", shell)
		if err != nil {
			return nil, err
		}
		out = append(out, tree.Text("share/"+at, text))
	}
	pages, err := r.pages()
	if err != nil {
		return nil, err
	}
	manual, err := r.manual(ctx)
	return slices.Concat(out, pages, manual), err
}

// manual returns the manual pages, which make writes, too.
func (r *release) manual(ctx context.Context) (tree.Tree, error) {
	to := r.folder(runtime.GOARCH)
	if err := r.target(ctx, "manual", "linux", runtime.GOARCH, to, "--old-file=build"); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(to, "man8", "*"))
	if err != nil {
		return nil, err
	}
	var out tree.Tree
	for _, at := range files {
		page, err := os.ReadFile(at)
		if err != nil {
			return nil, err
		}
		out = append(out, tree.File{Path: "share/man/man8/" + filepath.Base(at), Mode: 0o644, Body: page})
	}
	return out, nil
}

// says runs the volplane of this machine's architecture, and returns its output.
func (r *release) says(ctx context.Context, args ...string) (string, error) {
	return output(ctx, filepath.Join(r.folder(runtime.GOARCH), volplane), args...)
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	// The program's output must not depend on the user who makes a release.
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent"}
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", filepath.Base(name), strings.Join(args, " "), err)
	}
	return string(out), nil
}
