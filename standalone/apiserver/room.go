package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/decide/room"
)

// serveRoom answers requests for the available space of database and disk. It does not
// need the database.
func (s *Server) serveRoom(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		http.Error(w, "only GET", http.StatusMethodNotAllowed)
		return
	}
	data, err := json.Marshal(room.ReportOf(s.etcd.Room()))
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
