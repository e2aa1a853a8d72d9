package page

import (
	"crypto/rand"
	"crypto/sha256"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// tokenLife is how long a link may wait to be opened, sessionLife how long a browser may look after that.
	tokenLife, sessionLife = 5 * time.Minute, 24 * time.Hour
	// mostTokens and mostSessions limit what is remembered; beyond that, the oldest is forgotten.
	mostTokens, mostSessions = 32, 32
	cookieName               = "volplane-page"
	enterPath                = "enter"
)

// door lets browsers in.
type door struct {
	// prefix is the first part of all paths, "/" and an unguessable name. A browser sends cookies of 127.0.0.1 to every
	// port, so any local program could receive them if it knew their path.
	prefix string
	now    func() time.Time

	mu sync.Mutex
	// tokens and sessions are kept as hashes: the duration of a look-up then reveals nothing about them.
	tokens, sessions passes
}

// passes are hashes of secrets with the times of their ends, the oldest first.
type passes []pass

type pass struct {
	hash [sha256.Size]byte
	ends time.Time
}

func newDoor(now func() time.Time) *door { return &door{prefix: "/" + rand.Text() + "/", now: now} }

func (p *passes) add(secret string, most int, ends time.Time) {
	if len(*p) == most {
		*p = (*p)[1:]
	}
	*p = append(*p, pass{sha256.Sum256([]byte(secret)), ends})
}

// find returns the index of a secret that is known and has not expired, or -1.
func (p *passes) find(secret string, now time.Time) int {
	hash := sha256.Sum256([]byte(secret))
	return slices.IndexFunc(*p, func(p pass) bool { return p.hash == hash && now.Before(p.ends) })
}

// invite returns a token that works once, and when it expires.
func (d *door) invite() (string, time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	token, ends := rand.Text(), d.now().Add(tokenLife)
	d.tokens.add(token, mostTokens, ends)
	return token, ends
}

// enter exchanges a token for a session; false if the token is unknown or expired.
func (d *door) enter(token string) (session string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.tokens.find(token, d.now())
	if i < 0 {
		return "", false
	}
	d.tokens = slices.Delete(d.tokens, i, i+1)
	session = rand.Text()
	d.sessions.add(session, mostSessions, d.now().Add(sessionLife))
	return session, true
}

// admitted returns when the session of a request ends; false if it has no session.
func (d *door) admitted(r *http.Request) (time.Time, bool) {
	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return time.Time{}, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.sessions.find(cookie.Value, d.now())
	if i < 0 {
		return time.Time{}, false
	}
	return d.sessions[i].ends, true
}

// cookie is the one of a session. It is not Secure, because a loopback address has no certificate.
func (d *door) cookie(session string) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // as the comment says
		Name: cookieName, Value: session, Path: d.prefix, MaxAge: int(sessionLife.Seconds()), HttpOnly: true,
		SameSite: http.SameSiteStrictMode,
	}
}

// guard refuses requests that no browser of this host makes on its own: other methods, the name of another site that
// resolves to this address, and requests that other sites cause.
func (d *door) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		switch {
		case !isLoopback(r.Host):
			http.Error(w, "this host is requested by another name", http.StatusMisdirectedRequest)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the page can only be read", http.StatusMethodNotAllowed)
		case r.Header.Get("Origin") != "" && r.Header.Get("Origin") != "http://"+r.Host:
			http.Error(w, "another site asks", http.StatusForbidden)
		case !strings.HasPrefix(r.URL.Path, d.prefix):
			http.Error(w, "this is not a page: ask for a link with 'volplane page'", http.StatusNotFound)
		case strings.TrimPrefix(r.URL.Path, d.prefix) != enterPath && fromElsewhere(r):
			http.Error(w, "another site asks", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// fromElsewhere says whether a browser reports that another site has caused a request. Another port of this host counts
// as another site here, although browsers consider it the same.
func fromElsewhere(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "cross-site" || site == "same-site"
}

// isLoopback says whether a Host header names this host. The port may differ, as through a tunnel.
func isLoopback(host string) bool {
	u, err := url.Parse("http://" + host)
	if err != nil || u.Host != host {
		return false
	}
	name := strings.ToLower(u.Hostname())
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// secure sets the headers of all answers.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "+
		"img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}
