package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/process/options"
)

func pageCommand(s *shell.Shell) *cobra.Command {
	var link bool
	c := &cobra.Command{
		Use:   "page",
		Short: "Print a link to a page that shows what waits and why, drivers, and volumes by node",
		Long: `Print a link that opens a page in a browser on the host of the control plane. The
page shows what waits and why, volumes by node, drivers, and the life of each
volume, and follows what changes. It changes nothing.

The link works once and within a few minutes; after that the browser may look
for a day. Whoever has the link sees the whole control plane, but no Secrets, so
do not give it to a program as an argument: all users of the host see those.`,
		Example: `  volplane page`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return page(cmd.Context(), s, link) },
	}
	c.Flags().BoolVar(&link, "print-url", false, "print the link only")
	return c
}

func page(ctx context.Context, s *shell.Shell, linkOnly bool) error {
	client, _, err := s.Client()
	if err != nil {
		return err
	}
	data, err := client.Discovery().RESTClient().Post().AbsPath(options.PagePath).Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return errors.New("this API server has no page: it is not a volplane control plane, or one that was started with " +
			"--page=''; 'volplane status' and 'volplane why -A' show the same")
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; the page shows all namespaces, and needs the right to post to the path %s", err,
			options.PagePath)
	case err != nil:
		return err
	}
	var told options.Invitation
	if err := json.Unmarshal(data, &told); err != nil {
		return fmt.Errorf("read the link: %w", err)
	}
	u, err := url.Parse(told.URL)
	if err != nil || u.Scheme != "http" {
		return fmt.Errorf("the API server answers with %.80q, which is not a link", told.URL)
	}
	if linkOnly {
		fmt.Fprintln(s.Out, told.URL)
		return nil
	}
	fmt.Fprintf(s.Out, "Open this in a browser on the host of the control plane, once and until %s:\n\n  %s\n\n"+
		"From another host, first run: ssh -L %s:%s HOST\n", chain.Moment(told.Ends), told.URL,
		u.Port(), u.Host)
	return nil
}
