package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os/exec"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/test/internal/plane"
)

const (
	// pageTabs is how many tabs show an idle plane during idleTime, after settleTime, which is not counted.
	pageTabs   = 10
	idleTime   = time.Minute
	settleTime = 15 * time.Second
	// stale is longer than the page shows a recent sight.
	stale = 1500 * time.Millisecond
)

// measurePage measures the first page of a plane with n bound claims, and the cost of open tabs while nothing happens.
func measurePage(ctx context.Context, figures map[string]any, n, rounds int) error {
	figures["page_volumes"] = n
	return withMany(ctx, n, func(p *plane.Plane, client kubernetes.Interface) error {
		return lookAtPage(ctx, p, client, figures, rounds)
	})
}

// lookAtPage measures the page of a plane.
func lookAtPage(
	ctx context.Context, p *plane.Plane, client kubernetes.Interface, figures map[string]any, rounds int,
) error {
	if err := costs(p, figures, "page_without_tabs_percent_of_a_core"); err != nil {
		return err
	}
	browser, link, err := invited(ctx, p)
	if err != nil {
		return err
	}
	root := link[:strings.LastIndex(link, "/")+1]
	if err := loads(ctx, browser, client, root, figures, rounds); err != nil {
		return err
	}
	for range pageTabs {
		if err := openTab(ctx, browser, root); err != nil {
			return err
		}
	}
	return costs(p, figures, "page_ten_tabs_percent_of_a_core")
}

// invited returns a client that the page has let in.
func invited(ctx context.Context, p *plane.Plane) (*http.Client, string, error) {
	out, err := exec.CommandContext(ctx, plane.Bin("volplane"), "page", "--print-url", "--kubeconfig",
		p.Kubeconfig()).Output()
	if err != nil {
		return nil, "", fmt.Errorf("ask for a link: %w", err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, "", err
	}
	browser, link := &http.Client{Jar: jar}, strings.TrimSpace(string(out))
	_, err = load(ctx, browser, link)
	return browser, link, err
}

// loads measures how long the whole first page takes: immediately after the invitation, again, and after a change.
func loads(
	ctx context.Context, browser *http.Client, client kubernetes.Interface, root string, figures map[string]any,
	rounds int,
) error {
	first, err := load(ctx, browser, root)
	if err != nil {
		return err
	}
	figures["page_first_ms"] = milliseconds(first)
	var again, changed []time.Duration
	for i := range rounds {
		time.Sleep(stale)
		took, err := load(ctx, browser, root)
		if err != nil {
			return err
		}
		again = append(again, took)
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"round":"%d"}}}`, i)
		if _, err := client.CoreV1().PersistentVolumeClaims("default").Patch(ctx, "many-1", types.MergePatchType, patch,
			metav1.PatchOptions{}); err != nil {
			return err
		}
		if took, err = load(ctx, browser, root); err != nil {
			return err
		}
		changed = append(changed, took)
	}
	figures["page_again_ms"] = milliseconds(median(again))
	figures["page_after_a_change_ms"] = milliseconds(median(changed))
	return nil
}

// load returns how long it takes to receive a whole answer.
func load(ctx context.Context, browser *http.Client, address string) (time.Duration, error) {
	began := time.Now()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, err
	}
	answer, err := browser.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	if answer.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the page answers %s", answer.Status)
	}
	return time.Since(began), err
}

// openTab follows the first page until ctx ends.
func openTab(ctx context.Context, browser *http.Client, root string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, root+"live?of=", nil)
	if err != nil {
		return err
	}
	answer, err := browser.Do(r)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("a tab is answered %s", answer.Status)
	}
	lines := bufio.NewReader(answer.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		if strings.HasPrefix(line, "data: ") {
			break
		}
	}
	go func() {
		defer answer.Body.Close()
		_, _ = io.Copy(io.Discard, lines)
	}()
	return nil
}

// costs observes a process for a while without requests.
func costs(p *plane.Plane, figures map[string]any, figure string) error {
	time.Sleep(settleTime)
	before, err := readUsage(p.PID())
	if err != nil {
		return err
	}
	time.Sleep(idleTime)
	after, err := readUsage(p.PID())
	if err != nil {
		return err
	}
	figures[figure] = 100 * (after.cpu - before.cpu).Seconds() / idleTime.Seconds()
	return nil
}
