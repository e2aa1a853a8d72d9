package image

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"volplane.dev/volplane/release/tree"
)

// Platform is an architecture of Linux, as GOARCH names it.
type Platform string

// Image is an image of one name, on all platforms.
type Image struct {
	// Name is the full name with a registry and a tag: "localhost/volplane/volplane:v1".
	Name string
	// Entrypoint is what a container starts.
	Entrypoint []string
	// User is the user and the group of its process, as numbers.
	User string
	// Path is where programs are looked for.
	Path string
	// Labels are labels of the image, and annotations of its manifests and their index, where registries look.
	Labels map[string]string
	// Layers are the layers on each platform.
	Layers map[Platform][]v1.Layer
}

// Layer returns the files as a layer. It is compressed once, and is the same bytes in each image and archive.
func Layer(files tree.Tree, when time.Time) (v1.Layer, error) {
	data, err := files.TarGz(when)
	if err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	return tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer))
}

// platforms returns the platforms of an image, in order.
func (i Image) platforms() []Platform {
	return slices.Sorted(maps.Keys(i.Layers))
}

// build returns the image of one platform.
func (i Image) build(p Platform, when time.Time) (v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	additions := make([]mutate.Addendum, 0, len(i.Layers[p]))
	for _, l := range i.Layers[p] {
		additions = append(additions, mutate.Addendum{
			Layer:   l,
			History: v1.History{Created: v1.Time{Time: when.UTC()}, CreatedBy: "volplane release", Comment: i.Name},
		})
	}
	out, err := mutate.Append(base, additions...)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", i.Name, err)
	}
	config, err := out.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", i.Name, err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", string(p), v1.Time{Time: when.UTC()}
	config.Config = v1.Config{
		Entrypoint: i.Entrypoint, User: i.User, Env: []string{"PATH=" + i.Path}, WorkingDir: "/", Labels: i.Labels,
	}
	if out, err = mutate.ConfigFile(out, config); err != nil {
		return nil, fmt.Errorf("image %s: %w", i.Name, err)
	}
	return mutate.Annotations(out, i.Labels).(v1.Image), nil
}

// index returns the index of the image's platforms.
func (i Image) index(when time.Time) (v1.ImageIndex, error) {
	out := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range i.platforms() {
		image, err := i.build(p, when)
		if err != nil {
			return nil, err
		}
		out = mutate.AppendManifests(out, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: string(p)}},
		})
	}
	return mutate.Annotations(out, i.Labels).(v1.ImageIndex), nil
}

// These are the media types of artifacts that refer to an image.
const (
	cycloneDX types.MediaType = "application/vnd.cyclonedx+json"
	noConfig  types.MediaType = "application/vnd.oci.empty.v1+json"
)

// refer adds the list of what is in an image to a layout, as an artifact whose subject is the image: a registry that
// has both returns the list to clients that ask for the image's referrers.
func refer(to layout.Path, subject v1.Descriptor, list []byte) error {
	config, err := blob(to, noConfig, []byte("{}"))
	if err != nil {
		return err
	}
	layer, err := blob(to, cycloneDX, list)
	if err != nil {
		return err
	}
	text, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: string(cycloneDX), Config: config,
		Layers: []v1.Descriptor{layer}, Subject: &subject,
	})
	if err != nil {
		return err
	}
	manifest, err := blob(to, types.OCIManifestSchema1, text)
	if err != nil {
		return err
	}
	manifest.ArtifactType = string(cycloneDX)
	return to.AppendDescriptor(manifest)
}

// blob adds a blob to a layout, if it is not there.
func blob(to layout.Path, kind types.MediaType, data []byte) (v1.Descriptor, error) {
	digest, size, err := v1.SHA256(bytes.NewReader(data))
	if err != nil {
		return v1.Descriptor{}, err
	}
	err = to.WriteBlob(digest, io.NopCloser(bytes.NewReader(data)))
	return v1.Descriptor{MediaType: kind, Size: size, Digest: digest}, err
}
