package apiserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/standalone/backup"
	"volplane.dev/volplane/standalone/datadir"
	"volplane.dev/volplane/standalone/etcd"
	"volplane.dev/volplane/standalone/external"
)

// store is what keeps the objects.
type store interface {
	// Client returns a client for one user of watches, who closes it.
	Client() *clientv3.Client
	// Stop stops it; confirmed data stay.
	Stop()
	// Err receives the error with which the store fails.
	Err() <-chan error
	// prefix begins the keys of all objects.
	prefix() string
	// transport says how Kubernetes' own health checks connect.
	transport() storagebackend.TransportConfig
	// plan returns which requests are refused, and report the state of the store.
	plan() diskspace.Plan
	report() diskspace.Report
	// defragment rewrites the database without deleted data; nil if others run the store.
	defragment() func() error
}

// embedded is the etcd in this process.
type embedded struct{ *etcd.Server }

func (e embedded) prefix() string           { return registryPrefix }
func (e embedded) defragment() func() error { return e.Defragment }

func (e embedded) transport() storagebackend.TransportConfig {
	return storagebackend.TransportConfig{ServerList: []string{e.Endpoint()}}
}

func (e embedded) plan() diskspace.Plan {
	_, p := e.Room()
	return p
}

func (e embedded) report() diskspace.Report { return diskspace.ReportOf(e.Room()) }

// outside is an etcd that others run. Calls that it does not answer are refused, and tried again.
type outside struct{ *external.Store }

func (o outside) prefix() string           { return o.Options().Prefix }
func (o outside) defragment() func() error { return nil }

func (o outside) transport() storagebackend.TransportConfig {
	at := o.Options()
	return storagebackend.TransportConfig{
		ServerList: at.Servers, KeyFile: at.KeyFile, CertFile: at.CertFile, TrustedCAFile: at.CAFile,
	}
}

func (o outside) plan() diskspace.Plan {
	_, p := o.Room()
	return p
}

func (o outside) report() diskspace.Report {
	m, p := o.Room()
	return diskspace.ReportOfMembers(m, p, o.Options().Prefix)
}

// openStore starts etcd, or connects to the one that others run.
func (s *Server) openStore(ctx context.Context, o Options) error {
	if !o.External.IsZero() {
		return s.connect(ctx, o)
	}
	o.step("starting etcd")
	db, err := etcd.Start(ctx, o.etcd(s.dir.Path))
	if err != nil {
		return s.judge(err)
	}
	s.store = embedded{db}
	return nil
}

// where returns the store of a data directory: the given one, or that of the last start. Objects stay where they are
// until they are moved.
func (s *Server) where(given external.Options) (external.Options, error) {
	last, err := external.Recorded(s.dir.Path)
	if err != nil || given.IsZero() {
		return last, err
	}
	if err := given.Validate(); err != nil {
		return given, err
	}
	if !last.IsZero() && last.Prefix != given.Prefix {
		return given, fmt.Errorf("the objects of %s are below %s in the store, and --etcd-prefix is %s: use the former, or "+
			"another --data-dir", s.dir.Path, last.Prefix, given.Prefix)
	}
	if _, err := os.Stat(s.place("etcd")); last.IsZero() && err == nil {
		return given, fmt.Errorf("the objects of %s are in %s: move them with volplane migrate-store, or start without "+
			"--etcd-servers", s.dir.Path, s.place("etcd"))
	}
	return given, nil
}

// connect connects to a store that others run, and checks that its content belongs to this control plane before
// anything is written.
func (s *Server) connect(ctx context.Context, o Options) error {
	o.step("connecting to the store")
	db, err := external.Open(ctx, o.External, o.step, o.Log)
	if err != nil {
		return err
	}
	s.store = outside{db}
	err = db.Recognize(ctx, s.ca.CertPEM())
	empty, used := errors.Is(err, external.ErrEmpty), cmp.Or(s.dir.Used(), external.RecordOf(s.dir.Path))
	if empty && used != "" {
		return fmt.Errorf("%w, but %s exists, so this control plane has had objects: name the store that has them, or "+
			"bring them there with volplane restore or volplane migrate-store", err, used)
	}
	if empty {
		err = db.Claim(ctx, s.ca.CertPEM())
	}
	if err != nil {
		return err
	}
	if err := external.Record(s.dir.Path, o.External); err != nil {
		return err
	}
	if err := s.upgrade(ctx, o, !empty); err != nil {
		return err
	}
	if err := s.compare(o, db); err != nil {
		return err
	}
	return db.Begin(ctx, s.place(datadir.Record))
}

// compare treats a store as a restored backup if it lacks what an earlier process has recorded: it was replaced by an
// older or a different etcd.
func (s *Server) compare(o Options, db *external.Store) error {
	if _, pending, err := backup.Pending(s.dir.Path); err != nil || pending {
		return err
	}
	recorded, err := etcd.Recorded(s.place(datadir.Record))
	if err != nil || !db.Position().Lacks(recorded) {
		return err
	}
	if o.Log != nil {
		o.Log.Warn("the store is an older one than the one that was used last, or another one: it is treated as a restored "+
			"backup, and nothing is unmounted, detached or deleted until volplane restore --accept",
			"used", recorded.At, "recorded", recorded.Revision, "found", db.Position().Revision)
	}
	return backup.Found(s.dir.Path, o.External.Prefix, recorded, o.Version, time.Now())
}

// refuse answers requests about objects while the store has no quorum, because the watch cache would make their clients
// wait until it is filled again. Watches continue, and so do reads for which the watch cache is new enough.
func (s *Server) refuse(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		about, known := request.RequestInfoFrom(r.Context())
		plan := s.store.plan()
		if !plan.RefuseAll || !known || !about.IsResourceRequest || r.Method == http.MethodGet &&
			(about.Verb == "watch" || r.URL.Query().Get("resourceVersion") != "") {
			h.ServeHTTP(w, r)
			return
		}
		responsewriters.ErrorNegotiated(apierrors.NewServiceUnavailable(plan.Because.Message), legacyscheme.Codecs,
			schema.GroupVersion{Group: about.APIGroup, Version: about.APIVersion}, w, r)
	})
}

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
