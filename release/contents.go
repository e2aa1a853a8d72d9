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
)

// sumsFile has the sums of all other results.
const sumsFile = "SHA256SUMS"

// signed is what ssh-keygen appends to the name of a file that it signs.
const signed = ".sig"

// contents writes what is in the results: the modules of each program, and the packages in the node's image.
func (r *release) contents(context.Context) error {
	var built []sbom.Program
	for _, p := range programs() {
		// The modules are the same on all architectures.
		built = append(built, sbom.Program{Name: p.name, Path: filepath.Join(r.folder(r.platforms[0]), p.name)})
	}
	built = append(built, r.plugins()...)
	var debian []sbom.Debian
	for _, p := range r.tools {
		debian = append(debian, sbom.Debian(p))
	}
	doc, err := sbom.Write(r.version, r.when, built, debian)
	if err != nil {
		return err
	}
	return r.write("volplane-"+r.tag()+".cdx.json", doc)
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
