package image

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"volplane.dev/volplane/release/tree"
)

// Layout returns an OCI layout with all images on all of their platforms, and the list of their contents, which refers
// to each. Podman, skopeo, containerd and docker from version 25 read it.
func Layout(images []Image, list []byte, when time.Time) (files tree.Tree, err error) {
	all := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var subjects []v1.Descriptor
	for _, i := range images {
		index, err := i.index(when)
		if err != nil {
			return nil, err
		}
		subject, err := partial.Descriptor(index)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, v1.Descriptor{
			MediaType: subject.MediaType, Size: subject.Size, Digest: subject.Digest,
		})
		all = mutate.AppendManifests(all, mutate.IndexAddendum{Add: index, Descriptor: v1.Descriptor{
			// The first is for skopeo and podman, the second for containerd, which prefers it.
			Annotations: map[string]string{"org.opencontainers.image.ref.name": i.Name, "io.containerd.image.name": i.Name},
		}})
	}
	dir, err := os.MkdirTemp("", "volplane-images-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if failed := os.RemoveAll(dir); err == nil {
			err = failed
		}
	}()
	to, err := layout.Write(dir, all)
	for i := 0; i < len(subjects) && err == nil; i++ {
		err = refer(to, subjects[i], list)
	}
	if err != nil {
		return nil, fmt.Errorf("write images: %w", err)
	}
	return read(dir)
}

// read returns the files of a directory.
func read(dir string) (tree.Tree, error) {
	var out tree.Tree
	all := os.DirFS(dir)
	err := fs.WalkDir(all, ".", func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(all, at)
		if err != nil {
			return err
		}
		out = append(out, tree.File{Path: at, Mode: 0o644, Body: data})
		return nil
	})
	return out, err
}

// Docker returns what docker loads, of any version: the images of one platform.
func Docker(images []Image, p Platform, when time.Time) (tree.Tree, error) {
	var manifest tarball.Manifest
	blobs := map[string][]byte{}
	for _, i := range images {
		built, err := i.build(p, when)
		if err != nil {
			return nil, err
		}
		d, err := describe(i.Name, built, blobs)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", i.Name, err)
		}
		manifest = append(manifest, d)
	}
	list, err := json.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	out := tree.Tree{tree.Text("manifest.json", string(list))}
	for at, data := range blobs {
		out = append(out, tree.File{Path: at, Mode: 0o644, Body: data})
	}
	return out, nil
}

// describe adds the blobs of an image, and returns its line in docker's list.
func describe(called string, built v1.Image, blobs map[string][]byte) (tarball.Descriptor, error) {
	tag, err := name.NewTag(called)
	if err != nil {
		return tarball.Descriptor{}, err
	}
	config, err := built.ConfigName()
	if err != nil {
		return tarball.Descriptor{}, err
	}
	d := tarball.Descriptor{Config: path.Join("blobs", config.Algorithm, config.Hex), RepoTags: []string{tag.String()}}
	if blobs[d.Config], err = built.RawConfigFile(); err != nil {
		return d, err
	}
	layers, err := built.Layers()
	if err != nil {
		return d, err
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return d, err
		}
		at := path.Join("blobs", digest.Algorithm, digest.Hex)
		d.Layers = append(d.Layers, at)
		if _, there := blobs[at]; there {
			continue
		}
		r, err := l.Compressed()
		if err != nil {
			return d, err
		}
		if blobs[at], err = io.ReadAll(r); err != nil {
			return d, err
		}
	}
	return d, nil
}
