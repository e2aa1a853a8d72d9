package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"volplane.dev/volplane/release/image"
	"volplane.dev/volplane/release/tools"
	"volplane.dev/volplane/release/tree"
)

// unprivileged is the user of images that need no rights. It is a number, because Kubernetes must see that it is not
// root.
const unprivileged = "65532:65532"

// nodeImage is the name of the image for node agents and the bundled driver.
const nodeImage = "volplane-node"

// images makes the images: for controllers, one from scratch and the same under each sidecar's name; for nodes, one
// with the tools of filesystems.
func (r *release) images(ctx context.Context) error {
	plain, node := map[image.Platform][]v1.Layer{}, map[image.Platform][]v1.Layer{}
	for _, arch := range r.platforms {
		files, err := r.programFiles(arch)
		if err != nil {
			return err
		}
		own, err := image.Layer(files, r.when)
		if err != nil {
			return err
		}
		base, err := r.toolLayer(ctx, arch)
		if err != nil {
			return err
		}
		p := image.Platform(arch)
		plain[p], node[p] = []v1.Layer{own}, []v1.Layer{base, own}
	}
	if err := r.store(volplane, sidecarImages(r, plain), nil); err != nil {
		return err
	}
	i := r.image(nodeImage, volplane, node)
	// It mounts, and makes filesystems.
	i.User, i.Path = "0:0", "/:/usr/sbin:/usr/bin:/sbin:/bin"
	return r.store(nodeImage, []image.Image{i}, r.tools)
}

// sidecarImages returns the image for controllers, and the same for each name of a sidecar.
func sidecarImages(r *release, layers map[image.Platform][]v1.Layer) []image.Image {
	out := []image.Image{r.image(volplane, volplane, layers)}
	for _, name := range sidecars() {
		i := r.image(name, name, layers)
		// Upstream's images set no user: only root may connect to most drivers' sockets, and write where a kubelet looks.
		i.User = ""
		out = append(out, i)
	}
	return out
}

// image returns an image that starts the program of that name.
func (r *release) image(name, starts string, layers map[image.Platform][]v1.Layer) image.Image {
	return image.Image{
		Name: r.repository + "/" + name + ":" + r.tag(), Entrypoint: []string{"/" + starts}, User: unprivileged, Path: "/",
		Layers: layers,
		Labels: map[string]string{
			"org.opencontainers.image.title": name, "org.opencontainers.image.version": r.version,
			"org.opencontainers.image.description": "the storage control plane volplane, as the program " + starts,
			"org.opencontainers.image.vendor":      "volplane", "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.url": homepage, "org.opencontainers.image.documentation": homepage,
			"org.opencontainers.image.source": homepage, "org.opencontainers.image.revision": r.version,
			"org.opencontainers.image.created": r.when.Format("2006-01-02T15:04:05Z"),
		},
	}
}

// tag is the tag of the images, which cannot contain every character of a version.
func (r *release) tag() string { return strings.NewReplacer("+", "_", "~", "_").Replace(r.version) }

// programFiles returns the programs of the images, under all names that manifests use.
func (r *release) programFiles(arch string) (tree.Tree, error) {
	license, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	out := tree.Tree{
		tree.Text("licenses/volplane/LICENSE", string(license)), tree.Text("licenses/volplane/"+thirdParty, r.licenses),
	}
	for _, p := range programs() {
		if len(p.images) == 0 {
			continue
		}
		body, err := r.read(arch, p.name)
		if err != nil {
			return nil, err
		}
		out = append(out, tree.File{Path: p.name, Mode: 0o555, Body: body})
		for _, name := range p.images {
			out = append(out, tree.Link(name, p.name))
		}
	}
	for name, of := range aliases() {
		out = append(out, tree.Link(name, of))
	}
	return out, nil
}

// toolLayer returns the layer with the tools of filesystems, and notes the packages that they are from.
func (r *release) toolLayer(ctx context.Context, arch string) (_ v1.Layer, err error) {
	dir, err := os.MkdirTemp("", "volplane-tools-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if failed := os.RemoveAll(dir); err == nil {
			err = failed
		}
	}()
	from, err := tools.Fetch(ctx, arch, dir)
	if err != nil {
		return nil, err
	}
	r.tools = append(r.tools, from...)
	files, err := tools.Select(filepath.Join(dir, "root"))
	if err != nil {
		return nil, err
	}
	return image.Layer(files, r.when)
}

// store writes images with packages of Debian as an OCI layout, and as one archive for docker on each platform.
func (r *release) store(name string, images []image.Image, packages []tools.Package) error {
	built := slices.DeleteFunc(programs(), func(p program) bool { return len(p.images) == 0 })
	list, err := r.list(r.built(built), packages)
	if err != nil {
		return err
	}
	files, err := image.Layout(images, list, r.when)
	if err != nil {
		return err
	}
	if err := r.writeTar(fmt.Sprintf("%s-%s.oci.tar", name, r.tag()), files); err != nil {
		return err
	}
	for _, arch := range r.platforms {
		files, err := image.Docker(images, image.Platform(arch), r.when)
		if err != nil {
			return err
		}
		if err := r.writeTar(fmt.Sprintf("%s-%s-linux-%s.docker.tar", name, r.tag(), arch), files); err != nil {
			return err
		}
	}
	return nil
}

// writeTar writes a result that is not compressed as a whole.
func (r *release) writeTar(name string, files tree.Tree) error {
	f, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	if err := files.Tar(f, r.when); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
