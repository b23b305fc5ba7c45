from twincluster.cli.app import main as main
