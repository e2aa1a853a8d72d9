package page

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/gather/gathertest"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/testkit/golden"
)

// planeOf is the plane of a client, with some figures of this host.
func planeOf(client kubernetes.Interface) Plane {
	return Plane{
		Objects: func(ctx context.Context) (state.Objects, error) {
			facts := gather.New(client, gather.Options{})
			err := facts.All(ctx, metav1.NamespaceAll)
			return facts.Objects, err
		},
		Changed:   func() <-chan struct{} { return nil },
		Client:    client,
		Usage:     func() map[string]Usage { return map[string]Usage{"ns/c1": {3 << 30, 7 << 30}} },
		Connected: func() map[string]bool { return map[string]bool{"d.example.com": true} },
		Pace:      func() map[string]float64 { return map[string]float64{"d.example.com": 0.25} },
	}
}

// serve serves the page of a plane until the test ends, and returns the address of its overview.
func serve(t *testing.T, plane Plane) (*Page, *http.Client, string) {
	t.Helper()
	p := New("127.0.0.1:0", slog.New(slog.DiscardHandler))
	p.Show(plane)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Jar: jar}
	link := invited(t, p)
	if status, body, _ := get(t, client, link, nil); status != http.StatusOK || !strings.Contains(body, `url=./"`) {
		t.Fatalf("the link: %d %s", status, body)
	}
	return p, client, link[:strings.LastIndex(link, "/")+1]
}

// invited returns a link that the API server would give out.
func invited(t *testing.T, p *Page) string {
	t.Helper()
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, options.PagePath, nil))
	var got options.Invitation
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || time.Until(got.Ends) > tokenLife {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	return got.URL
}

// get requests an address, with headers, and returns the status, the body and the headers of the answer.
func get(t *testing.T, c *http.Client, address string, headers map[string]string) (int, string, http.Header) {
	t.Helper()
	return ask(t, c, http.MethodGet, address, headers)
}

func ask(
	t *testing.T, c *http.Client, method, address string, headers map[string]string,
) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range headers {
		if r.Header.Set(name, value); name == "Host" {
			r.Host = value
		}
	}
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body), answer.Header
}

// TestPages: the text of the pages of a small cluster, word for word.
func TestPages(t *testing.T) {
	_, client, root := serve(t, planeOf(gathertest.Town()))
	times := regexp.MustCompile(`As of [^.]+\.|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`)
	for file, path := range map[string]string{
		"overview": "", "claims": "claims", "volumes": "volumes?find=C2", "mounts": "mounts?node=n1",
		"claim": "object/pvc/ns/data", "volume": "object/pv/-/pv-c1", "driver": "object/csidriver/-/d.example.com",
	} {
		status, body, _ := get(t, client, root+path, nil)
		if status != http.StatusOK {
			t.Fatalf("%s: %d %s", path, status, body)
		}
		golden.Equal(t, "testdata/"+file+".html", times.ReplaceAllString(body, "TIME"))
	}
	for path, want := range map[string]int{
		"object/pvc/ns/none": http.StatusNotFound, "object/secret/ns/none": http.StatusNotFound, "other": http.StatusNotFound,
		"assets/page.js": http.StatusOK, "assets/page.css": http.StatusOK, "assets/": http.StatusNotFound,
		"assets/../templates/frame.html": http.StatusNotFound, "claims?page=99": http.StatusOK,
		"object/pvc/%zz/none": http.StatusBadRequest, "live?of=other": http.StatusNotFound,
	} {
		r := root + path
		if _, err := url.Parse(r); err != nil {
			continue
		}
		if status, body, _ := get(t, client, r, nil); status != want {
			t.Errorf("%s: %d, want %d: %s", path, status, want, body)
		}
	}
}

// TestEveryLinkLeadsSomewhere: every link of every page leads to a page.
func TestEveryLinkLeadsSomewhere(t *testing.T) {
	_, client, root := serve(t, planeOf(gathertest.Town()))
	seen, next := map[string]bool{root: true}, []string{root}
	for len(next) > 0 {
		at := next[0]
		next = next[1:]
		status, body, header := get(t, client, at, nil)
		if status != http.StatusOK {
			t.Errorf("%s: %d %s", at, status, body)
		}
		if !strings.HasPrefix(header.Get("Content-Type"), "text/html") {
			continue
		}
		base, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:href|src)="([^"]*)"`).FindAllStringSubmatch(body, -1) {
			u, err := base.Parse(m[1])
			if err != nil || u.Scheme != "http" || u.Fragment != "" {
				continue
			}
			if to := u.String(); !seen[to] {
				seen[to], next = true, append(next, to)
				if !strings.HasPrefix(to, root) {
					t.Errorf("%s leads away, to %s", at, to)
				}
			}
		}
	}
	if len(seen) < 20 {
		t.Errorf("only %d pages were found", len(seen))
	}
}
