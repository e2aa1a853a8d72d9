package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/decide/room"
)

// tellRoom answers how much room the control plane has. It needs no database to
// do so.
func (s *Server) tellRoom(w http.ResponseWriter, r *http.Request) {
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

// ended says why etcd has ended, and what can be done about it.
func (s *Server) ended(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("etcd: %w; the disk of %s is full: make room on it, then start again; all that was "+
			"confirmed is there", err, s.dir.Path)
	}
	return fmt.Errorf("etcd: %w", err)
}
