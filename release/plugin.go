package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"volplane.dev/volplane/release/krew"
	"volplane.dev/volplane/release/sbom"
	"volplane.dev/volplane/release/tree"
)

// systems are those with a kubectl plugin, whose users may not work on Linux.
func systems() []string { return []string{"linux", "darwin", "windows"} }

// plugin makes the archives of the kubectl plugin, and krew's manifest for it.
func (r *release) plugin(ctx context.Context) error {
	license, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	var archives []krew.Archive
	for _, system := range systems() {
		for _, arch := range r.platforms {
			to := filepath.Join(r.bin, system+"-"+arch)
			if err := r.target(ctx, "plugin", system, arch, to); err != nil {
				return err
			}
			a := krew.Archive{OS: system, Arch: arch}
			body, err := os.ReadFile(filepath.Join(to, a.Program()))
			if err != nil {
				return err
			}
			files := tree.Tree{
				tree.Program(a.Program(), body), tree.Text("LICENSE", string(license)), tree.Text(thirdParty, r.licenses),
			}
			if a.Data, err = files.TarGz(r.when); err != nil {
				return err
			}
			name := fmt.Sprintf("%s-%s-%s-%s.tar.gz", krew.Program, r.tag(), system, arch)
			if err := r.write(name, a.Data); err != nil {
				return err
			}
			a.URI = r.url + "/" + name
			archives = append(archives, a)
		}
	}
	text, err := krew.New(r.version, homepage, archives, "LICENSE", thirdParty).YAML()
	if err != nil {
		return err
	}
	return r.write(krew.Plugin+".yaml", text)
}

// plugins are the plugin's programs, whose modules are the same on all architectures.
func (r *release) plugins() []sbom.Program {
	var out []sbom.Program
	for _, system := range systems() {
		a := krew.Archive{OS: system}
		out = append(out, sbom.Program{
			Name: krew.Program + "-" + system, Path: filepath.Join(r.bin, system+"-"+r.platforms[0], a.Program()),
		})
	}
	return out
}
