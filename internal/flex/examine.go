package flex

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"volplane.dev/volplane/internal/flex/doctor"
)

// Diagnosis is the result of examining a driver.
type Diagnosis = doctor.Report

// Exam says which driver is examined, and with which volume.
type Exam struct {
	// Subject is the path of an executable, or the name of a driver that is installed in Dir. An
	// empty Dir is found as Options.Dir is.
	Subject, Dir string
	// DataDir and Named are those of Options.
	DataDir string
	Named   bool
	// Options, FSType and Secrets are those of the volume.
	Options map[string]string
	FSType  string
	Secrets map[string]string
	// GrowTo is the size in bytes to which the volume is expanded at the end of the examination; 0
	// expands nothing. The volume keeps that size.
	GrowTo int64
}

// Examine calls a driver both as hosts do and in ways that hosts should not, with real mounts in a
// scratch directory. It may be repeated.
func Examine(ctx context.Context, e Exam) (Diagnosis, error) {
	dir := ""
	if info, err := os.Stat(e.Subject); err == nil && info.Mode().IsRegular() {
		// A path may look like a driver's name; an existing file takes precedence.
		if e.Subject, err = filepath.Abs(e.Subject); err != nil {
			return Diagnosis{}, fmt.Errorf("find driver: %w", err)
		}
	} else if d, err := (Options{Dir: e.Dir, DataDir: e.DataDir, Named: e.Named}).find(); err == nil || d.Path != "" {
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
