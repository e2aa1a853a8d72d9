package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/volume"
)

// Limits of the server: a client that is slow, or sends much, holds nothing.
const (
	headerLimit = 10 * time.Second
	writeLimit  = 2 * lookLimit
	idleLimit   = time.Minute
	headerBytes = 16 << 10
	mostConns   = 2 * mostTabs
)

// Page is a page about a control plane.
type Page struct {
	address string
	log     *slog.Logger
	door    *door

	mu       sync.Mutex
	live     *live
	listener net.Listener
	ended    bool
	failed   chan error
}

// New returns a page that will listen at a loopback address, host:port, after the first invitation.
func New(address string, log *slog.Logger) *Page {
	return &Page{address: address, log: log, door: newDoor(time.Now), failed: make(chan error, 1)}
}

// CheckAddress returns an error for an address that is reachable from other hosts; "" turns the page off.
func CheckAddress(address string) error {
	if address == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("address of the page: %w", err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("address of the page: %.80q is not a loopback address, and the page has no TLS: use 127.0.0.1, "+
			"and a tunnel such as 'ssh -L' to look from elsewhere", host)
	}
	return nil
}

// Show makes the page show a control plane. It must be called once.
func (p *Page) Show(plane Plane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live = &live{plane: newRenderer(plane), log: p.log}
}

// shown returns the live page; nil while there is no control plane to show.
func (p *Page) shown() *live {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live
}

// Run serves the page until ctx ends or it cannot listen any more.
func (p *Page) Run(ctx context.Context) error {
	defer p.close()
	select {
	case <-ctx.Done():
		return nil
	case err := <-p.failed:
		return fmt.Errorf("serve the page: %w", err)
	}
}

func (p *Page) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.listener != nil {
		_ = p.listener.Close()
	}
	if p.live != nil {
		p.live.end()
	}
}

// listen returns the address at which the page listens, from the first call on.
func (p *Page) listen() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended:
		return "", errors.New("the control plane ends")
	case p.listener != nil:
		return p.listener.Addr().String(), nil
	}
	l, err := net.Listen("tcp", p.address)
	if err != nil {
		return "", fmt.Errorf("listen for browsers: %w", err)
	}
	p.listener = l
	server := &http.Server{
		Handler: p.door.guard(http.HandlerFunc(p.serve)), ReadHeaderTimeout: headerLimit, ReadTimeout: headerLimit,
		WriteTimeout: writeLimit, IdleTimeout: idleLimit, MaxHeaderBytes: headerBytes,
		ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	go func() {
		err := server.Serve(netutil.LimitListener(l, mostConns))
		_ = server.Close() // streams end with the page
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.ended {
			p.failed <- err
		}
	}()
	return l.Addr().String(), nil
}

// ServeHTTP invites a browser: it answers an authorized user with a options.Invitation. It is not part of the page, but
// of the API server, which authenticates the user.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST", http.StatusMethodNotAllowed)
		return
	}
	l := p.shown()
	if l == nil {
		http.Error(w, "the control plane is still starting", http.StatusServiceUnavailable)
		return
	}
	at, err := p.listen()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	// After an invitation the page is ready, however many objects there are. If they cannot be read, the page says why.
	release := l.hold(context.WithoutCancel(r.Context()))
	_, _ = l.look(r.Context())
	token, ends := p.door.invite()
	time.AfterFunc(time.Until(ends), release)
	link := "http://" + at + p.door.prefix + enterPath + "?token=" + token
	body, err := json.Marshal(options.Invitation{URL: link, Ends: ends})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}

// serve answers a browser.
func (p *Page) serve(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.EscapedPath(), p.door.prefix)
	if path == enterPath {
		p.enter(w, r)
		return
	}
	ends, ok := p.door.admitted(r)
	if !ok {
		http.Error(w, "Ask for a new link with 'volplane page': this one was used, or is too old.", http.StatusForbidden)
		return
	}
	ctx, cancel := context.WithDeadline(r.Context(), ends)
	defer cancel()
	asset, isAsset := strings.CutPrefix(path, "assets/")
	switch {
	case isAsset && (asset == "page.js" || asset == "page.css"):
		http.ServeFileFS(w, r, files, path)
	case path == "live":
		p.stream(ctx, w, r)
	default:
		if r.URL.RawQuery != "" {
			path += "?" + r.URL.RawQuery
		}
		p.show(ctx, w, path)
	}
}

// enter admits a browser that has a token. The answer is a page and not a redirection: browsers do not send a cookie
// that is SameSite=Strict after a redirection that begins at another site, such as a mail with the link.
func (p *Page) enter(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		return // HEAD does not use up the link
	}
	session, ok := p.door.enter(r.URL.Query().Get("token"))
	if !ok {
		http.Error(w, "This link was used, or is too old: ask for a new one with 'volplane page'.", http.StatusForbidden)
		return
	}
	http.SetCookie(w, p.door.cookie(session))
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if err := p.shown().plane.templates.ExecuteTemplate(w, "enter", nil); err != nil {
		p.log.Debug("the page was not sent", "err", err)
	}
}

// show answers with one page.
func (p *Page) show(ctx context.Context, w http.ResponseWriter, address string) {
	t, err := targetOf(address)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	l := p.shown()
	s, err := l.look(ctx)
	if err != nil {
		http.Error(w, clean(err.Error()), http.StatusServiceUnavailable)
		return
	}
	r, err := s.page(ctx, l.plane, t)
	if err != nil {
		http.Error(w, clean(err.Error()), http.StatusServiceUnavailable)
		return
	}
	if err := l.plane.write(w, r, t, chain.Moment(s.Now)); err != nil {
		p.log.Debug("the page was not sent", "err", err)
	}
}

// stream sends the changes of one page.
func (p *Page) stream(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	asked := r.URL.Query()
	t, err := targetOf(asked.Get("of"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	if r.Method == http.MethodHead {
		return
	}
	has := asked.Get("version")
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		has = last
	}
	p.shown().serve(ctx, w, t, has)
}

// User is the user name of the page at the API server. It may read what the page shows, and write nothing.
const User = "system:volplane:page"

// RBAC returns the rights of User. Secrets are not among them, so that no mistake can show one.
func RBAC() []runtime.Object {
	read := []string{"get", "list", "watch"}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: User}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{corev1.GroupName}, Verbs: read, Resources: []string{
			"persistentvolumeclaims", "persistentvolumes", "pods", "nodes", "namespaces", "events",
		}},
		{APIGroups: []string{corev1.GroupName}, Verbs: read, Resources: []string{"configmaps"}},
		{APIGroups: []string{storagev1.GroupName}, Verbs: read, Resources: []string{"*"}},
		{APIGroups: []string{volume.GroupSnapshot}, Verbs: read, Resources: []string{"*"}},
	}}
	return []runtime.Object{role, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: User},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: User}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: User},
	}}
}

// Usage is how full a mounted volume is, in bytes.
type Usage struct{ Used, Available int64 }

// Plane is the control plane that a page shows.
type Plane struct {
	// Objects returns what is known of all objects.
	Objects func(context.Context) (state.Objects, error)
	// Changed returns a channel that is closed at the next change of what Objects returns, except for warnings and
	// intents, which the page follows on its own.
	Changed func() <-chan struct{}
	// Client reads objects as a whole, and events, as User.
	Client kubernetes.Interface
	// Usage returns how full the volumes are that are mounted on this host, by NAMESPACE/CLAIM.
	Usage func() map[string]Usage
	// Connected says, for each driver that was once connected, whether it is.
	Connected func() map[string]bool
	// Pace returns how many calls of each driver end in a second.
	Pace func() map[string]float64
}
