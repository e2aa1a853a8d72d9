package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"volplane.dev/volplane/release/sbom"
	"volplane.dev/volplane/release/tools"
)

// sumsFile has the sums of all other results.
const sumsFile = "SHA256SUMS"

// signed is the suffix that ssh-keygen appends to the name of a signed file.
const signed = ".sig"

// contents writes the list of contents: the modules of each program, and the packages in the node's image.
func (r *release) contents(context.Context) error {
	doc, err := r.list(append(r.built(programs()), r.plugins()...), r.tools)
	if err != nil {
		return err
	}
	return r.write("volplane-"+r.tag()+".cdx.json", doc)
}

// built returns the built programs. Their modules are the same on all architectures.
func (r *release) built(all []program) []sbom.Program {
	var out []sbom.Program
	for _, p := range all {
		out = append(out, sbom.Program{Name: p.name, Path: filepath.Join(r.folder(r.platforms[0]), p.name)})
	}
	return out
}

// list returns the list of what is in programs and packages.
func (r *release) list(built []sbom.Program, packages []tools.Package) ([]byte, error) {
	var debian []sbom.Debian
	for _, p := range packages {
		debian = append(debian, sbom.Debian(p))
	}
	return sbom.Write(r.version, r.when, built, debian)
}

// sums writes the sums of all results, and the signature of this list if there is a key.
func (r *release) sums(ctx context.Context) error {
	all, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var list bytes.Buffer
	for _, e := range all {
		data, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256(data), e.Name())
	}
	if err := r.write(sumsFile, list.Bytes()); err != nil || r.key == "" {
		return err
	}
	cmd := exec.CommandContext(ctx, "ssh-keygen", "-Y", "sign", "-f", r.key, "-n", "file", filepath.Join(r.out, sumsFile))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ssh-keygen -Y sign: %w: %s", err, out)
	}
	return nil
}
