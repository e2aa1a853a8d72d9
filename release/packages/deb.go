package packages

import (
	"context"
	"crypto/md5" // #nosec G501 -- dpkg's list of what is installed has such sums; they are not trusted
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"volplane.dev/volplane/release/tree"
)

//go:embed scripts
var scripts embed.FS

// DebName returns the usual name of the file.
func (p Package) DebName() string { return fmt.Sprintf("%s_%s-1_%s.deb", p.Name, p.Version, p.Arch) }

// Deb makes the package for Debian and its derivatives at the path to, with dpkg-deb.
func (p Package) Deb(ctx context.Context, to string) (err error) {
	files, err := p.debFiles()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "volplane-deb-")
	if err != nil {
		return err
	}
	defer func() {
		if failed := os.RemoveAll(dir); err == nil {
			err = failed
		}
	}()
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil { // #nosec G301 -- it becomes the root of the package
		return err
	}
	if err := files.Write(root); err != nil {
		return err
	}
	// One thread only: several need not make the same blocks. A higher level takes minutes and saves little.
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--threads-max=1",
		"--build", root, to)
	cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", p.When.Unix()))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("dpkg-deb: %w: %s", err, out)
	}
	return nil
}

// debFiles returns the files with those in DEBIAN, and everything else that Debian requires in a package.
func (p Package) debFiles() (tree.Tree, error) {
	changes, err := tree.Gzip(fmt.Appendf(nil,
		"%s (%s-1) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- %s  %s\n",
		p.Name, p.Version, p.Maintainer, p.When.UTC().Format("Mon, 02 Jan 2006 15:04:05 -0700")))
	if err != nil {
		return nil, err
	}
	doc := path.Join("usr/share/doc", p.Name)
	files := append(tree.Tree{{Path: path.Join(doc, "changelog.Debian.gz"), Mode: 0o644, Body: changes}}, p.Files...)
	complete, err := files.Complete()
	if err != nil {
		return nil, err
	}
	var sums strings.Builder
	kib := 0
	for _, f := range complete {
		kib++
		if f.Mode.IsRegular() {
			kib += len(f.Body) / 1024
			sum := md5.Sum(f.Body) // #nosec G401 -- as above
			fmt.Fprintf(&sums, "%x  %s\n", sum, f.Path)
		}
	}
	out := append(complete, tree.Text("DEBIAN/md5sums", sums.String()), tree.Text("DEBIAN/control", p.control(kib)))
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		body, err := fs.ReadFile(scripts, "scripts/deb."+name)
		if err != nil {
			return nil, err
		}
		out = append(out, tree.Program("DEBIAN/"+name, body))
	}
	return out, nil
}

func (p Package) control(kib int) string {
	var b strings.Builder
	for _, line := range [][2]string{
		{"Package", p.Name},
		{"Version", p.Version + "-1"},
		{"Architecture", p.Arch},
		{"Maintainer", p.Maintainer},
		{"Installed-Size", fmt.Sprint(kib)},
		{"Depends", strings.Join(p.Requires, ", ")},
		{"Recommends", strings.Join(p.Recommends, ", ")},
		{"Section", "admin"},
		{"Priority", "optional"},
		{"Homepage", p.Homepage},
		{"Description", p.Summary},
	} {
		if line[1] != "" {
			fmt.Fprintf(&b, "%s: %s\n", line[0], line[1])
		}
	}
	for _, line := range p.Description {
		fmt.Fprintf(&b, " %s\n", line)
	}
	return b.String()
}
