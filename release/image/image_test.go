package image_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"volplane.dev/volplane/release/image"
	"volplane.dev/volplane/release/tree"
)

const (
	name = "example.com/example/program:v1"
	list = `{"bomFormat": "CycloneDX"}`
)

// images returns two images of the same layers, for two platforms.
func images(t *testing.T) []image.Image {
	t.Helper()
	layers := map[image.Platform][]v1.Layer{}
	for _, p := range []image.Platform{"arm64", "amd64"} {
		files := tree.Tree{tree.Program("program", []byte("for "+p)), tree.Link("other", "program")}
		l, err := image.Layer(files, time.Unix(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		layers[p] = []v1.Layer{l}
	}
	first := image.Image{
		Name: name, Entrypoint: []string{"/program"}, User: "1:1", Path: "/", Layers: layers,
		Labels: map[string]string{"org.opencontainers.image.title": "example"},
	}
	second := first
	second.Name, second.Entrypoint = "example.com/example/other:v1", []string{"/other"}
	return []image.Image{first, second}
}

func packed(t *testing.T, files tree.Tree, err error) []byte {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := files.Tar(&b, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func layout(t *testing.T) []byte {
	t.Helper()
	files, err := image.Layout(images(t), []byte(list), time.Unix(1, 0))
	return packed(t, files, err)
}

func docker(t *testing.T, p image.Platform) []byte {
	t.Helper()
	files, err := image.Docker(images(t), p, time.Unix(1, 0))
	return packed(t, files, err)
}

// TestSameBytes: the same images give the same archives.
func TestSameBytes(t *testing.T) {
	if !bytes.Equal(layout(t), layout(t)) {
		t.Error("the layout has other bytes the second time")
	}
	if !bytes.Equal(docker(t, "arm64"), docker(t, "arm64")) {
		t.Error("docker's archive has other bytes the second time")
	}
}

// TestPlatforms: each platform gets its own program from both archives.
func TestPlatforms(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return at
	}
	oci := write("oci.tar", layout(t))
	seen := map[string]image.Platform{}
	for _, p := range []image.Platform{"amd64", "arm64"} {
		archive := write(string(p)+".tar", docker(t, p))
		a, b := diffIDs(t, p, "oci-archive:"+oci+":"+name), diffIDs(t, p, "docker-archive:"+archive+":"+name)
		if a != b {
			t.Errorf("%s: the layout has the layers %s, docker's archive %s", p, a, b)
		}
		if other, twice := seen[a]; twice {
			t.Errorf("%s and %s have the same program", p, other)
		}
		seen[a] = p
	}
}

// TestAnnotations: labels are annotations as well: of the index, and of the manifest of each platform.
func TestAnnotations(t *testing.T) {
	files, err := image.Layout(images(t), []byte(list), time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, f := range files {
		var m struct {
			MediaType   string            `json:"mediaType"`
			Annotations map[string]string `json:"annotations"`
		}
		if json.Unmarshal(f.Body, &m) == nil && m.Annotations["org.opencontainers.image.title"] == "example" {
			found[m.MediaType]++
		}
	}
	// Two images, each on two platforms.
	want := map[string]int{"application/vnd.oci.image.index.v1+json": 2, "application/vnd.oci.image.manifest.v1+json": 4}
	if !maps.Equal(found, want) {
		t.Errorf("annotated are %v, want %v", found, want)
	}
}

// TestReferrers: each image has an artifact with the list, which refers to the image's index.
func TestReferrers(t *testing.T) {
	files, err := image.Layout(images(t), []byte(list), time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	at := func(d v1.Descriptor) []byte {
		f, found := files.Find("blobs/sha256/" + d.Digest.Hex)
		if !found || d.Size != int64(len(f.Body)) {
			t.Fatalf("%s has %d bytes, found %v", d.Digest, len(f.Body), found)
		}
		return f.Body
	}
	index, _ := files.Find("index.json")
	var all v1.IndexManifest
	if err := json.Unmarshal(index.Body, &all); err != nil {
		t.Fatal(err)
	}
	named, referred := map[v1.Hash]bool{}, map[v1.Hash]bool{}
	for _, d := range all.Manifests {
		if d.ArtifactType == "" {
			named[d.Digest] = true
			continue
		}
		referred[subjectOf(t, d, at)] = true
	}
	if len(named) != 2 || !maps.Equal(named, referred) {
		t.Errorf("of the images %v, lists refer to %v", named, referred)
	}
}

// subjectOf requires that an artifact has the list, and returns the digest of its subject.
func subjectOf(t *testing.T, d v1.Descriptor, at func(v1.Descriptor) []byte) v1.Hash {
	t.Helper()
	var m v1.Manifest
	if err := json.Unmarshal(at(d), &m); err != nil {
		t.Fatal(err)
	}
	if d.ArtifactType != "application/vnd.cyclonedx+json" || m.ArtifactType != d.ArtifactType || len(m.Layers) != 1 ||
		string(at(m.Layers[0])) != list || string(at(m.Config)) != "{}" {
		t.Errorf("the artifact is %s: %+v", d.ArtifactType, m)
	}
	at(*m.Subject)
	return m.Subject.Digest
}

// diffIDs returns the layers that a machine of the platform gets.
func diffIDs(t *testing.T, p image.Platform, ref string) string {
	t.Helper()
	args := []string{"--override-arch", string(p), "inspect", "--config", ref}
	out, err := exec.CommandContext(t.Context(), "skopeo", args...).Output()
	if err != nil {
		t.Fatalf("skopeo inspect %s: %v", ref, err)
	}
	var config struct {
		Architecture string
		RootFS       struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	if err := json.Unmarshal(out, &config); err != nil {
		t.Fatal(err)
	}
	if config.Architecture != string(p) || len(config.RootFS.DiffIDs) != 1 {
		t.Errorf("%s gets %+v", p, config)
	}
	return config.RootFS.DiffIDs[0]
}
