//go:build linux

package cli

import (
	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/driver/starter"
)

func (s *shell) driverInitCommand() *cobra.Command {
	c := s.initCommand(starter.Languages(), starter.Write)
	c.Short = "Write a CSI driver to start from, and its test"
	c.Long = `Write a working CSI driver into a directory, with its test, its file for a host
and a README. Change the driver so that it mounts your storage, and test it with
'sh test.sh', which also runs 'volplane driver doctor'.

The volumes of the driver are directories of the host. A driver in Go needs
modules of gRPC and CSI, one in Python the packages grpcio and protobuf.`
	c.Example = `  volplane driver init files.example.com
  volplane driver init files.example.com --language python --dir driver`
	return c
}
