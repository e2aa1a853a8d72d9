package image

import (
	"bytes"
	"encoding/json"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

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
