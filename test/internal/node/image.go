package node

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Image is an image with one layer, which has a file system's files.
type Image struct {
	// Names are its references, with tags; each starts its entry in Starts, or the only program.
	Names map[string][]string
	// Files are the host's files by their paths in the image, and Links the targets of links.
	Files, Links map[string]string
}

// write writes images that share the layer, as docker's archive.
func (i Image) write(to io.Writer) error {
	layer, err := i.layer()
	if err != nil {
		return err
	}
	out := tar.NewWriter(to)
	type entry struct {
		Config           string
		RepoTags, Layers []string
	}
	var all []entry
	err = add(out, "layer.tar", layer)
	for name, starts := range i.Names {
		config, failed := json.Marshal(map[string]any{
			"os": "linux", "architecture": arch, "config": map[string]any{"Entrypoint": starts, "Env": []string{"PATH=/bin"}},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
		})
		file := fmt.Sprintf("%x.json", sha256.Sum256([]byte(name)))
		all = append(all, entry{file, []string{name}, []string{"layer.tar"}})
		err = errors.Join(err, failed, add(out, file, config))
	}
	manifest, failed := json.Marshal(all)
	return errors.Join(err, failed, add(out, "manifest.json", manifest), out.Close())
}

func add(out *tar.Writer, name string, data []byte) error {
	err := out.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg})
	if err != nil {
		return err
	}
	_, err = out.Write(data)
	return err
}

func (i Image) layer() ([]byte, error) {
	var b bytes.Buffer
	out := tar.NewWriter(&b)
	for _, dir := range i.folders() {
		err := out.WriteHeader(&tar.Header{Name: dir + "/", Mode: 0o1777, Typeflag: tar.TypeDir})
		if err != nil {
			return nil, err
		}
	}
	for at, from := range i.Files {
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		if err := add(out, strings.TrimPrefix(at, "/"), data); err != nil {
			return nil, err
		}
	}
	for at, to := range i.Links {
		err := out.WriteHeader(&tar.Header{
			Name: strings.TrimPrefix(at, "/"), Linkname: to, Mode: 0o777, Typeflag: tar.TypeSymlink,
		})
		if err != nil {
			return nil, err
		}
	}
	return b.Bytes(), out.Close()
}

// folders are those of the files and links, and /tmp.
func (i Image) folders() []string {
	all := map[string]bool{"tmp": true}
	for _, m := range []map[string]string{i.Files, i.Links} {
		for at := range m {
			for dir := filepath.Dir(strings.TrimPrefix(at, "/")); dir != "."; dir = filepath.Dir(dir) {
				all[dir] = true
			}
		}
	}
	out := make([]string, 0, len(all))
	for dir := range all {
		out = append(out, dir)
	}
	slices.Sort(out)
	return out
}
