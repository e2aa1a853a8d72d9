package packages

import (
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/google/rpmpack"
)

// rpmArch has rpm's names of architectures.
func rpmArch(arch string) string {
	switch arch {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return arch
}

// RPMName returns the usual name of the file.
func (p Package) RPMName() string {
	return fmt.Sprintf("%s-%s-1.%s.rpm", p.Name, p.Version, rpmArch(p.Arch))
}

// RPM makes the package for Fedora, SUSE and their derivatives at the path to.
func (p Package) RPM(to string) error {
	r, err := rpmpack.NewRPM(rpmpack.RPMMetaData{
		Name: p.Name, Version: p.Version, Release: "1", Arch: rpmArch(p.Arch),
		Summary: p.Summary, Description: strings.Join(p.Description, "\n"),
		Licence: p.License, URL: p.Homepage, Packager: p.Maintainer, Group: "System Environment/Daemons",
		// The host's name would differ on each machine.
		BuildHost: "localhost", BuildTime: p.When, Compressor: "zstd", Epoch: rpmpack.NoEpoch,
		Requires: relations(p.Requires), Recommends: relations(p.Recommends),
	})
	if err != nil {
		return fmt.Errorf("rpm: %w", err)
	}
	if err := p.addTo(r); err != nil {
		return err
	}
	for name, add := range map[string]func(string){
		"post": r.AddPostin, "preun": r.AddPreun, "postun": r.AddPostun,
	} {
		body, err := fs.ReadFile(scripts, "scripts/rpm."+name)
		if err != nil {
			return err
		}
		add(string(body))
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	if err := r.Write(f); err != nil {
		_ = f.Close()
		return fmt.Errorf("rpm: %w", err)
	}
	return f.Close()
}

// addTo adds the files, and of the directories those that belong to the package alone.
func (p Package) addTo(r *rpmpack.RPM) error {
	complete, err := p.Files.Complete()
	if err != nil {
		return err
	}
	own := p.directories()
	for _, f := range complete {
		out := rpmpack.RPMFile{
			Name: "/" + f.Path, Body: f.Body, Mode: uint(f.Mode.Perm()), Owner: "root", Group: "root",
			MTime: uint32(p.When.Unix()), // #nosec G115 -- rpm has no other
		}
		switch {
		case f.Mode.IsDir():
			if _, listed := own.Find(f.Path); !listed {
				continue
			}
			out.Mode |= 0o040000
		case f.Mode&fs.ModeSymlink != 0:
			out.Mode, out.Body = 0o120777, []byte(f.Link)
		case strings.HasPrefix(f.Path, "usr/share/doc/"):
			out.Type = rpmpack.DocFile
		}
		r.AddFile(out)
	}
	return nil
}

func relations(names []string) rpmpack.Relations {
	var out rpmpack.Relations
	for _, n := range names {
		out = append(out, &rpmpack.Relation{Name: n})
	}
	return out
}
