"""What a run says about itself: metrics, the idle ledger, the verdict, dashboard and TensorBoard."""
