package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/standalone/backup"
)

// serveRoom answers requests for the available space of database and disk, and for the time of
// the newest backup. It does not need the database.
func (s *Server) serveRoom(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		http.Error(w, "only GET", http.StatusMethodNotAllowed)
		return
	}
	report := s.Room()
	report.NoBackups = s.noBackups
	if made := backup.Newest(s.dir.Path); !made.IsZero() {
		report.Backup = &made
	}
	data, err := json.Marshal(report)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}

// ended describes why etcd has stopped, and the next step.
func (s *Server) ended(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("etcd: %w; the disk of %s is full: make room on it, then start again; all that was "+
			"confirmed is there", err, s.dir.Path)
	}
	return fmt.Errorf("etcd: %w", err)
}
