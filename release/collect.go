package main

import (
	"context"
	"path/filepath"

	"volplane.dev/volplane/release/licenses"
)

// thirdParty is the name of the file with the licences of modules.
const thirdParty = "THIRD-PARTY-LICENSES"

// collect reads the licences of everything that the programs are built from.
func (r *release) collect(ctx context.Context) error {
	builds := []licenses.Build{
		{Dir: r.root, Packages: []string{"./cmd/volplane", "./cmd/volplane-node-sidecars"}, System: "linux"},
		{Dir: filepath.Join(r.root, "standalone"), Packages: []string{"./cmd/volplaned"}, System: "linux"},
	}
	for _, system := range systems() {
		builds = append(builds, licenses.Build{Dir: r.root, Packages: []string{"./cmd/kubectl-why_volume"}, System: system})
	}
	var err error
	r.licenses, err = licenses.Collect(ctx, builds)
	return err
}
