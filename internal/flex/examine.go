package flex

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"volplane.dev/volplane/internal/flex/doctor"
)

// Diagnosis is what an examination of a driver found.
type Diagnosis = doctor.Report

// Exam says which driver is examined, and with which volume.
type Exam struct {
	// Subject is a path of an executable, or the name of a driver that is
	// installed in Dir; "" finds the plugin directory.
	Subject, Dir string
	// Options, FSType and Secrets are the volume's.
	Options map[string]string
	FSType  string
	Secrets map[string]string
	// GrowTo is how large the volume is made, in bytes, and stays; 0 makes none
	// larger.
	GrowTo int64
}

// Examine calls a driver as hosts do, and as no host should, with real
// mounts in a scratch directory.
func Examine(ctx context.Context, e Exam) (Diagnosis, error) {
	dir := ""
	if info, err := os.Stat(e.Subject); err == nil && info.Mode().IsRegular() {
		// A path may look like a name, and what is there is meant.
		if e.Subject, err = filepath.Abs(e.Subject); err != nil {
			return Diagnosis{}, fmt.Errorf("find driver: %w", err)
		}
	} else if d, err := (Options{Dir: e.Dir}).find(); err == nil || d.Path != "" {
		dir = d.Path
	}
	path, name, err := doctor.Locate(e.Subject, dir)
	if err != nil {
		return Diagnosis{}, err
	}
	if _, err := os.Stat(path); err != nil {
		return Diagnosis{}, fmt.Errorf("find driver %s: %w: give the path of a file, or the name of one that 'volplane "+
			"flex list' shows", e.Subject, err)
	}
	return (&doctor.Doctor{
		Path: path, Name: name, Options: e.Options, FSType: e.FSType, Secrets: e.Secrets, GrowTo: e.GrowTo,
	}).Run(ctx)
}
