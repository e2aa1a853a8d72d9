package page

import (
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/internal/gather/gathertest"
	"volplane.dev/volplane/internal/process/options"
)

// TestALinkWorksOnce: a link lets one browser in, a HEAD request does not use it up, and nothing is shown without it.
func TestALinkWorksOnce(t *testing.T) {
	p, first, root := serve(t, planeOf(gathertest.Town()))
	link := invited(t, p)
	jar, _ := cookiejar.New(nil)
	second := &http.Client{Jar: jar}
	for _, path := range []string{"", "claims", "assets/page.js", "live?of="} {
		if status, body, _ := get(t, second, root+path, nil); status != http.StatusForbidden {
			t.Errorf("%q without a link: %d %s", path, status, body)
		}
	}
	status, _, header := ask(t, second, http.MethodHead, link, nil)
	if status != http.StatusOK || header["Set-Cookie"] != nil {
		t.Errorf("HEAD of the link: %d %v", status, header)
	}
	_, _, header = get(t, second, link, nil)
	cookie := header.Get("Set-Cookie")
	for _, part := range []string{"Path=/" + strings.Split(root, "/")[3] + "/", "HttpOnly", "SameSite=Strict"} {
		if !slices.Contains(strings.Split(cookie, "; "), part) {
			t.Errorf("the cookie has no %s: %s", part, cookie)
		}
	}
	for _, c := range []*http.Client{first, second} {
		if status, _, _ := get(t, c, root, nil); status != http.StatusOK {
			t.Errorf("the overview: %d", status)
		}
	}
	if status, _, _ := get(t, &http.Client{}, link, nil); status != http.StatusForbidden {
		t.Errorf("the link the second time: %d", status)
	}
	if status, _, _ := get(t, &http.Client{}, root+"enter?token=", nil); status != http.StatusForbidden {
		t.Errorf("an empty token: %d", status)
	}
}

// TestPassesEnd: a link ends after minutes, a session after a day, and of too many the oldest.
func TestPassesEnd(t *testing.T) {
	now := time.Unix(0, 0)
	d := newDoor(func() time.Time { return now })
	token, _ := d.invite()
	now = now.Add(tokenLife)
	if _, ok := d.enter(token); ok {
		t.Error("an old link works")
	}
	session := func() *http.Request {
		token, _ := d.invite()
		session, ok := d.enter(token)
		if !ok {
			t.Fatal("a new link does not work")
		}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.AddCookie(d.cookie(session))
		return r
	}
	r := session()
	if _, ok := d.admitted(r); !ok {
		t.Error("a new session does not work")
	}
	now = now.Add(sessionLife)
	if _, ok := d.admitted(r); ok {
		t.Error("an old session works")
	}
	first := session()
	for range mostSessions {
		session()
	}
	if _, ok := d.admitted(first); ok || len(d.sessions) != mostSessions {
		t.Errorf("%d sessions are remembered, the first %v", len(d.sessions), ok)
	}
	oldest, _ := d.invite()
	for range mostTokens {
		d.invite()
	}
	if _, ok := d.enter(oldest); ok || len(d.tokens) != mostTokens {
		t.Errorf("%d links are remembered, the oldest %v", len(d.tokens), ok)
	}
}

// TestOthersAreRefused: other methods, other names of this host, and requests that other sites cause.
func TestOthersAreRefused(t *testing.T) {
	p, client, root := serve(t, planeOf(gathertest.Town()))
	host := strings.Split(root, "/")[2]
	for _, c := range []struct {
		method, path string
		headers      map[string]string
		want         int
	}{
		{http.MethodGet, "", map[string]string{"Host": "rebound.example.com"}, http.StatusMisdirectedRequest},
		{http.MethodGet, "", map[string]string{"Host": "127.0.0.1.example.com:80"}, http.StatusMisdirectedRequest},
		{http.MethodGet, "", map[string]string{"Host": "192.0.2.1"}, http.StatusMisdirectedRequest},
		{http.MethodGet, "", map[string]string{"Host": "x@127.0.0.1"}, http.StatusMisdirectedRequest},
		{http.MethodGet, "", map[string]string{"Origin": "http://" + host}, http.StatusOK},
		{http.MethodGet, "", map[string]string{"Origin": "http://example.com"}, http.StatusForbidden},
		{http.MethodGet, "", map[string]string{"Origin": "null"}, http.StatusForbidden},
		{http.MethodGet, "", map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		{http.MethodGet, "", map[string]string{"Sec-Fetch-Site": "same-site"}, http.StatusForbidden},
		{http.MethodGet, "", map[string]string{"Sec-Fetch-Site": "none"}, http.StatusOK},
		{http.MethodGet, "enter?token=x", map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		{http.MethodHead, "", nil, http.StatusOK},
		{http.MethodHead, "live?of=", nil, http.StatusOK},
		{http.MethodPost, "", nil, http.StatusMethodNotAllowed},
		{http.MethodPut, "claims", nil, http.StatusMethodNotAllowed},
		{http.MethodDelete, "object/pvc/ns/data", nil, http.StatusMethodNotAllowed},
		{http.MethodOptions, "", nil, http.StatusMethodNotAllowed},
		{http.MethodGet, "../", nil, http.StatusNotFound},
	} {
		status, body, header := ask(t, client, c.method, root+c.path, c.headers)
		if status != c.want {
			t.Errorf("%s %s with %v: %d, want %d: %s", c.method, c.path, c.headers, status, c.want, body)
		}
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
			"Cross-Origin-Resource-Policy": "same-origin",
		} {
			if header.Get(name) != want {
				t.Errorf("%s %s with %v: %s is %q", c.method, c.path, c.headers, name, header.Get(name))
			}
		}
		policy := header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") ||
			!strings.Contains(policy, "frame-ancestors 'none'") {
			t.Errorf("%s %s: policy %q", c.method, c.path, policy)
		}
	}
	// A link opened from another site works as well: users click on it in a mail.
	mail := map[string]string{"Sec-Fetch-Site": "cross-site"}
	if status, _, _ := get(t, &http.Client{}, invited(t, p), mail); status != http.StatusOK {
		t.Errorf("a link in a mail: %d", status)
	}
}

// TestInvitations: a request by another method, or too early, or to a page that has ended, gets an explanation.
func TestInvitations(t *testing.T) {
	p := New("127.0.0.1:0", slog.New(slog.DiscardHandler))
	try := func(method string, want int) {
		t.Helper()
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, options.PagePath, nil))
		if w.Code != want {
			t.Errorf("%s: %d %s, want %d", method, w.Code, w.Body, want)
		}
	}
	try(http.MethodGet, http.StatusMethodNotAllowed)
	try(http.MethodPost, http.StatusServiceUnavailable)
	p.Show(planeOf(gathertest.Town()))
	p.close()
	try(http.MethodPost, http.StatusServiceUnavailable)
}

func TestCheckAddress(t *testing.T) {
	for address, ok := range map[string]bool{
		"": true, "127.0.0.1:0": true, "localhost:80": true, "[::1]:80": true, "127.0.0.1": false, ":80": false,
		"0.0.0.0:80": false, "192.0.2.1:80": false, "example.com:80": false,
	} {
		if err := CheckAddress(address); (err == nil) != ok {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1:80": true, "127.0.0.1": true, "localhost:8080": true, "LOCALHOST": true, "[::1]:80": true,
		"127.8.0.1": true, "": false, "example.com": false, "localhost.example.com": false,
		"127.0.0.1.example.com": false, "192.0.2.1:80": false, "a@localhost": false, "localhost/": false,
		"localhost:x": false,
	} {
		if got := isLoopback(host); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
}
