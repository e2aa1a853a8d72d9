package datadir

import (
	"errors"
	"io/fs"
	"path/filepath"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/durable"
)

const (
	// admissionName is the file with the admission of a host as a control plane.
	admissionName = "admission.json"
	// mostAdmission limits its size.
	mostAdmission = 1 << 10
)

type admission struct {
	Epoch identity.Epoch `json:"epoch"`
}

// Admitted returns the epoch in which the host of a data directory was admitted as a control plane: the first one if it
// was never invited.
func Admitted(dir string) (identity.Epoch, error) {
	var a admission
	err := durable.ReadJSON(filepath.Join(dir, admissionName), mostAdmission, &a)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return a.Epoch, err
}

// Admit records that the host of a data directory is admitted as a control plane in an epoch.
func Admit(dir string, epoch identity.Epoch) error {
	return durable.WriteJSON(filepath.Join(dir, admissionName), admission{epoch})
}
